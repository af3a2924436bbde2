"""The metrics page: statistics of the models, of the machine, and what models measure themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio

from tpy.assembly.options import ServerOptions
from tpy.assembly.server_load import ServerLoad
from tpy.devices import NO_DEVICES, Devices
from tpy.frontends.threads import run_in_thread
from tpy.messages import GpuUse, LoadReport, ModelStatistics
from tpy.refusals import Refusals
from tpy.telemetry.cache import cache_families
from tpy.telemetry.exposition import MeasuredFamily
from tpy.telemetry.gpus import GpuSampler, gpu_uses
from tpy.telemetry.host import HostSampler, pinned_pool_families
from tpy.telemetry.metrics import dropped_lines_family, refused_family, render, server_growth_families, server_load_family
from tpy_data.engine import DataPlane
from tpy_data.gpus import NO_GPUS, GpuInventory


class MetricsPage:
    """Implements MetricsService. One page at a time is written, in a thread: it may have thousands of lines."""

    def __init__(
        self,
        options: ServerOptions,
        data: DataPlane,
        gpus: GpuInventory = NO_GPUS,
        devices: Devices = NO_DEVICES,
        repositories: Callable[[], Sequence[MeasuredFamily]] = tuple,
        refusals: Refusals | None = None,
        dropped_lines: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`repositories` gives the metrics of the model repositories, `dropped_lines` how many lines each log lost."""
        self._options = options
        self._data = data
        self._repositories = repositories
        self._refusals = refusals or Refusals()
        self._dropped_lines = dropped_lines
        self._sampler = HostSampler()
        self._pinned = devices.pinned
        self._gpu_ids = {gpu.uuid: gpu.id for gpu in gpus.gpus if gpu.uuid}
        self._gpus = GpuSampler(list(self._gpu_ids))
        self._interval_s = options.metrics.interval_ms / 1000
        self._threads = trio.CapacityLimiter(1)
        self._load = ServerLoad(data.statistics, data.custom_metrics, lambda: self._sampler.families)

    async def sample(self) -> None:
        """Sample the machine at the interval of the options, and have memory watched, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._data.watch_memory)
            if self._options.metrics.machine:
                nursery.start_soon(self._sample_machine)
            if self._options.metrics.gpus and self._gpus.uuids:
                nursery.start_soon(self._sample_gpus)

    async def _sample_machine(self) -> None:
        while True:
            self._sampler.sample()
            await trio.sleep(self._interval_s)

    async def _sample_gpus(self) -> None:
        """In a thread that is left behind when the server ends while a driver hangs."""
        readable = True
        while readable:
            readable = await trio.to_thread.run_sync(self._gpus.sample, abandon_on_cancel=True)
            await trio.sleep(self._interval_s)

    async def page(self, *, openmetrics: bool = False) -> bytes:
        """As `MetricsService.page`."""
        host = [
            *self._gpus.families,
            *self._sampler.families,
            *self._data.rollout_families(),
            *self._data.budget_families(),
            *self._data.tenant_families(),
            *self._data.batching_families(),
            *cache_families(self._data.cache_statistics()),
            *pinned_pool_families(self._pinned.total_bytes, self._pinned.used_bytes),
            *self._repositories(),
            *server_growth_families(self._data.growth()),
            refused_family(self._refusals.counts),
            dropped_lines_family(self._dropped_lines()),
        ]
        models = self._data.statistics(with_latencies=True)
        host.append(server_load_family(models))
        return await run_in_thread(self._write, models, host, openmetrics, limiter=self._threads)

    async def load(self, model_name: str = "", version: int | None = None) -> LoadReport:
        """As `MetricsService.load`."""
        return self._load.report(model_name, version, trio.current_time())

    async def gpus(self) -> Sequence[GpuUse]:
        """As `MetricsService.gpus`."""
        return gpu_uses(self._gpus.families, self._gpu_ids)

    def _write(self, models: Sequence[ModelStatistics], host: Sequence[MeasuredFamily], openmetrics: bool) -> bytes:
        return render(
            models,
            host,
            custom=self._data.custom_metrics(),
            openmetrics=openmetrics,
            counter_latencies=self._options.metrics.counter_latencies,
            caching=self._options.cache is not None,
            namespacing=self._options.control.namespacing,
        )
