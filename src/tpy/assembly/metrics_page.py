"""The metrics page: statistics of the models, of the machine, and what models measure themselves."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from tpy.assembly.options import ServerOptions
from tpy.frontends.threads import run_in_thread
from tpy.messages import ModelStatistics
from tpy.telemetry.cache import cache_families
from tpy.telemetry.host import HostSampler
from tpy.telemetry.metrics import MeasuredFamily, render
from tpy_data.engine import DataPlane


class MetricsPage:
    """Implements MetricsService. One page at a time is written, in a thread: it may have thousands of lines."""

    def __init__(self, options: ServerOptions, data: DataPlane) -> None:
        self._options = options
        self._data = data
        self._sampler = HostSampler()
        self._threads = trio.CapacityLimiter(1)

    async def sample(self) -> None:
        """Sample the machine at the interval of the options, for ever."""
        while self._options.metrics.machine:
            self._sampler.sample()
            await trio.sleep(self._options.metrics.interval_ms / 1000)

    async def page(self) -> bytes:
        host = [*self._sampler.families, *cache_families(self._data.cache_statistics())]
        return await run_in_thread(self._write, self._data.statistics(), host, limiter=self._threads)

    def _write(self, models: Sequence[ModelStatistics], host: Sequence[MeasuredFamily]) -> bytes:
        return render(
            models,
            host,
            custom=self._data.custom_metrics(),
            counter_latencies=self._options.metrics.counter_latencies,
            caching=self._options.cache is not None,
            namespacing=self._options.control.namespacing,
        )
