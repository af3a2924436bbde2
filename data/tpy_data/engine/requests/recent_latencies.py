"""RecentLatencies: percentiles of a version's newest requests, kept only while somebody asks for explanations of it."""

from __future__ import annotations

from collections.abc import Iterable

from tpy.limits import LATENCIES_KEPT_NS, LATENCY_SLICE_NS
from tpy.messages import Percentiles, RecentLatency
from tpy.telemetry.latencies import QuantileWindow, quantiles_of
from tpy.units import NS_PER_US
from tpy_data.engine.requests.handle import Execution
from tpy_data.engine.requests.latencies import CountedRequest

_SHARES = (0.5, 0.9, 0.99)


class RecentLatencies:
    """Asked for at `now_ns`, and wanted for some time from then on."""

    __slots__ = ("_queue", "_total", "_until_ns")

    def __init__(self, now_ns: int) -> None:
        self._total = QuantileWindow("total", slice_ns=LATENCY_SLICE_NS)
        self._queue = QuantileWindow("queue", slice_ns=LATENCY_SLICE_NS)
        self._until_ns = now_ns + LATENCIES_KEPT_NS

    def wanted(self, now_ns: int) -> bool:
        """False when nobody has asked for long."""
        return now_ns < self._until_ns

    def succeeded(self, requests: Iterable[tuple[CountedRequest, Execution]], now_ns: int) -> None:
        """As `VersionStatistics.succeeded`."""
        for request, execution in requests:
            self.add(now_ns - request.queued_ns, execution[0] - request.queued_ns, now_ns)

    def add(self, total_ns: int, queue_ns: int, now_ns: int) -> None:
        """A request was answered now."""
        self._total.add(total_ns, now_ns)
        self._queue.add(queue_ns, now_ns)

    def ask(self, now_ns: int) -> RecentLatency:
        """The percentiles now."""
        self._until_ns = now_ns + LATENCIES_KEPT_NS
        return RecentLatency(
            requests=_count(self._total, now_ns), total=_percentiles(self._total, now_ns), queue=_percentiles(self._queue, now_ns)
        )


def _count(window: QuantileWindow, now_ns: int) -> int:
    summary = window.snapshot((), now_ns).summary
    return 0 if summary is None else sum(sum(part.values()) for part in summary.slices)


def _percentiles(window: QuantileWindow, now_ns: int) -> Percentiles:
    summary = window.snapshot(_SHARES, now_ns).summary
    if summary is None or not any(summary.slices):
        return Percentiles()
    p50, p90, p99 = (round(duration_us * NS_PER_US) for _, duration_us in quantiles_of(summary))
    return Percentiles(p50_ns=p50, p90_ns=p90, p99_ns=p99)
