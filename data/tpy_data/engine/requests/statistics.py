"""VersionStatistics: the counters of one model version, of the statistics extension and of our failure reasons.

All are integers and written on the Trio thread only. Triton's identities hold: `success.count == queue.count`; a failed request
is in `fail` only; the compute times of a request are those of its whole batch.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

from tpy.errors import InvalidArgument, QueueFull, TpyError
from tpy.ids import ModelId
from tpy.limits import LATENCIES_KEPT_NS, LATENCY_SLICE_NS, RESPONSE_STATISTICS_MAX
from tpy.messages import (
    BatchStatistics,
    Duration,
    FailureCounts,
    InferenceStatistics,
    ModelCounters,
    Percentiles,
    RecentLatency,
    ResponseStatistics,
)
from tpy.telemetry.latencies import QuantileWindow, quantiles_of
from tpy.units import NS_PER_US
from tpy_data.engine.requests.handle import Execution
from tpy_data.engine.requests.latencies import CountedRequest, VersionLatencies
from tpy_data.schedulers.core.contract import Outcome, Ticket

_SHARES = (0.5, 0.9, 0.99)


class RecentLatencies:
    """The latencies of the last requests of a version, measured from when somebody asks for them, for LATENCIES_KEPT_NS."""

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


class ResponseKind(enum.IntEnum):
    """The kinds of responses."""

    SUCCESS = 0
    FAIL = 1
    EMPTY = 2
    CANCEL = 3


class ResponseCounters:
    """Grows by one row with each new index, up to RESPONSE_STATISTICS_MAX rows."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[list[int]] = []  # per kind: count, infer ns, output ns

    def add(self, kind: ResponseKind, index: int, infer_ns: int, output_ns: int) -> None:
        """Count one response."""
        rows = self._rows
        index = min(index, RESPONSE_STATISTICS_MAX - 1)
        while len(rows) <= index:
            rows.append([0] * (3 * len(ResponseKind)))
        row, at = rows[index], 3 * kind
        row[at] += 1
        row[at + 1] += infer_ns
        row[at + 2] += output_ns

    def snapshot(self) -> tuple[ResponseStatistics, ...]:
        """The rows, by index."""
        return tuple(_statistics(index, row) for index, row in enumerate(self._rows))


def _statistics(index: int, row: list[int]) -> ResponseStatistics:
    def both(kind: ResponseKind) -> Duration:
        count, infer_ns, output_ns = row[3 * kind : 3 * kind + 3]
        return Duration(count, infer_ns + output_ns)

    success, fail = 3 * ResponseKind.SUCCESS, 3 * ResponseKind.FAIL
    computed = row[success] + row[fail]
    return ResponseStatistics(
        index=index,
        compute_infer=Duration(computed, row[success + 1] + row[fail + 1]),
        compute_output=Duration(row[success], row[success + 2]),
        success=both(ResponseKind.SUCCESS),
        fail=both(ResponseKind.FAIL),
        empty_response=both(ResponseKind.EMPTY),
        cancel=both(ResponseKind.CANCEL),
    )


class FailureReason(enum.Enum):
    """The kinds of reasons why a request that was accepted failed."""

    REJECTED = "rejected"
    """Its deadline passed first."""
    CANCELED = "canceled"
    """The caller gave up."""
    BACKEND = "backend"
    """The model or its backend answered with an error."""
    OTHER = "other"
    """The version was unloaded before its turn came; or a step of an ensemble failed, which is counted with that step's model."""


_FAILURES = {
    Outcome.TIMED_OUT: FailureReason.REJECTED,
    Outcome.SEQUENCE_TIMED_OUT: FailureReason.REJECTED,
    Outcome.CANCELLED: FailureReason.CANCELED,
    Outcome.SEQUENCE_LOST: FailureReason.BACKEND,
}


class VersionStatistics:
    """Counts from when the version was loaded. `responses` are those of a decoupled model; without `latencies` no distributions
    are kept."""

    __slots__ = (
        "_batches",
        "_cache_hit_count",
        "_cache_hit_ns",
        "_cache_miss_count",
        "_cache_miss_ns",
        "_counters",
        "_execution_count",
        "_fail_ns",
        "_failed_count",
        "_failures",
        "_infer_ns",
        "_inference_count",
        "_input_ns",
        "_last_inference_ms",
        "_output_ns",
        "_queue_ns",
        "_recent",
        "_refused_full",
        "_refused_invalid",
        "_refused_unavailable",
        "_success_count",
        "_success_ns",
        "latencies",
        "responses",
    )

    def __init__(self, latencies: VersionLatencies | None = None) -> None:
        self._success_count = self._success_ns = 0
        self._queue_ns = self._input_ns = self._infer_ns = self._output_ns = 0
        self._failed_count = self._fail_ns = 0
        self._inference_count = self._execution_count = 0
        self._last_inference_ms = 0
        self._failures = dict.fromkeys(FailureReason, 0)
        self._refused_invalid = self._refused_full = self._refused_unavailable = 0
        self._cache_hit_count = self._cache_hit_ns = self._cache_miss_count = self._cache_miss_ns = 0
        self.responses = ResponseCounters()
        self.latencies = latencies
        self._counters: ModelCounters | None = None
        self._recent: RecentLatencies | None = None
        self._batches: dict[int, list[int]] = {}  # size -> count, input ns, infer ns, output ns

    def executed(self, batches: Iterable[tuple[int, Execution]], wall_ms: int) -> None:
        """Batches with these numbers of rows and these times were executed, successfully or not."""
        for batch_size, (_, input_ns, infer_ns, output_ns) in batches:
            row = self._batches.get(batch_size)
            if row is None:
                row = self._batches[batch_size] = [0, 0, 0, 0]
            row[0] += 1
            row[1] += input_ns
            row[2] += infer_ns
            row[3] += output_ns
            self._execution_count += 1
            self._last_inference_ms = wall_ms

    def succeeded(self, requests: Collection[tuple[CountedRequest, Execution]], now_ns: int) -> None:
        """These requests were answered with outputs at `now_ns`, after batches with these times."""
        count = rows = success_ns = queue_ns = inputs_ns = infers_ns = outputs_ns = 0
        for ticket, (start_ns, input_ns, infer_ns, output_ns) in requests:
            queued_ns = ticket.queued_ns
            count += 1
            rows += ticket.batch_size
            success_ns += now_ns - queued_ns
            queue_ns += start_ns - queued_ns
            inputs_ns += input_ns
            infers_ns += infer_ns
            outputs_ns += output_ns
        self._success_count += count
        self._inference_count += rows
        self._success_ns += success_ns
        self._queue_ns += queue_ns
        self._input_ns += inputs_ns
        self._infer_ns += infers_ns
        self._output_ns += outputs_ns
        if self.latencies is not None:
            self.latencies.succeeded(requests, now_ns)
        if self._recent is not None and (recent := self._recent_at(now_ns)) is not None:
            recent.succeeded(requests, now_ns)

    def first_response(self, request: CountedRequest, now_ns: int) -> None:
        """The first response to the request, which may have more, was sent."""
        if self.latencies is not None:
            self.latencies.first_response(request, now_ns)

    def failed(self, ticket: Ticket, failure: FailureReason, now_ns: int) -> None:
        """The request was answered with an error, or not at all."""
        self._failures[failure] += 1
        self._failed_count += 1
        self._fail_ns += now_ns - ticket.queued_ns

    def refused(self, ticket: Ticket, outcome: Outcome, now_ns: int) -> None:
        """Its scheduler refused the request after it had accepted it."""
        self.failed(ticket, _FAILURES.get(outcome, FailureReason.OTHER), now_ns)

    def refused_admission(self, refusal: TpyError) -> None:
        """It was not accepted, for this reason. Not a failure in Triton's numbers."""
        if isinstance(refusal, InvalidArgument):
            self._refused_invalid += 1
        elif isinstance(refusal, QueueFull):
            self._refused_full += 1
        else:
            self._refused_unavailable += 1

    def cache_hit(self, taken_ns: int, queue_ns: int, lookup_ns: int, now_ns: int) -> None:
        """A request was answered from the response cache at `now_ns`: a success that was not executed."""
        self._success_count += 1
        self._success_ns += taken_ns
        self._queue_ns += queue_ns
        self._cache_hit_count += 1
        self._cache_hit_ns += lookup_ns
        if self.latencies is not None:
            self.latencies.cache_hit(taken_ns, queue_ns, lookup_ns)
        recent = self._recent_at(now_ns)
        if recent is not None:
            recent.add(taken_ns, queue_ns, now_ns)

    def cache_missed(self, lookup_ns: int, before_ns: int, *, inserting: bool) -> None:
        """A request that succeeded was not in the response cache: it came to its scheduler `before_ns` after its arrival, of
        which `lookup_ns` were the cache's, and the rest a wait for an equal request. `inserting`: `cache_inserted` follows."""
        self._success_ns += before_ns
        self._queue_ns += before_ns - lookup_ns
        self._cache_miss_count += 1
        self._cache_miss_ns += lookup_ns
        if self.latencies is not None and not inserting:
            self.latencies.cache_miss(lookup_ns)

    def cache_inserted(self, lookup_ns: int, insertion_ns: int) -> None:
        """Its answer was inserted, after a lookup that took so long."""
        self._success_ns += insertion_ns
        self._cache_miss_ns += insertion_ns
        if self.latencies is not None:
            self.latencies.cache_miss(lookup_ns + insertion_ns)

    @property
    def last_inference_ms(self) -> int:
        """Wall-clock milliseconds of the newest execution, 0 for never."""
        return self._last_inference_ms

    @property
    def inference_count(self) -> int:
        """Rows of successful requests."""
        return self._inference_count

    @property
    def execution_count(self) -> int:
        """Executed batches."""
        return self._execution_count

    def counters(self, model: ModelId, version: int, memory_bytes: int) -> ModelCounters:
        """As `DiagnosticsService.counters`, of this version: made anew when something has happened."""
        kept = self._counters
        if (
            kept is None
            or kept.latency_ns != self._success_ns
            or kept.requests != self._success_count
            or kept.executions != self._execution_count
            or kept.failures != self._failed_count
            or kept.memory_bytes != memory_bytes
        ):
            kept = self._counters = ModelCounters(
                name=model.name,
                version=version,
                namespace=model.namespace,
                requests=self._success_count,
                failures=self._failed_count,
                inferences=self._inference_count,
                executions=self._execution_count,
                latency_ns=self._success_ns,
                queue_ns=self._queue_ns,
                compute_ns=self._input_ns + self._infer_ns + self._output_ns,
                last_request_ms=self._last_inference_ms,
                memory_bytes=memory_bytes,
            )
        return kept

    def recent_latency(self, now_ns: int) -> RecentLatency:
        """The percentiles of the newest requests, which are kept from the first call on, for as long as there are more."""
        recent = self._recent_at(now_ns)
        if recent is None:
            recent = self._recent = RecentLatencies(now_ns)
        return recent.ask(now_ns)

    def _recent_at(self, now_ns: int) -> RecentLatencies | None:
        """None, and nothing kept any more, when nobody has asked for long."""
        if self._recent is not None and not self._recent.wanted(now_ns):
            self._recent = None
        return self._recent

    def inference(self) -> InferenceStatistics:
        """The cumulative durations."""
        count = self._success_count
        executed = count - self._cache_hit_count
        return InferenceStatistics(
            success=Duration(count, self._success_ns),
            fail=Duration(self._failed_count, self._fail_ns),
            queue=Duration(count, self._queue_ns),
            compute_input=Duration(executed, self._input_ns),
            compute_infer=Duration(executed, self._infer_ns),
            compute_output=Duration(executed, self._output_ns),
            cache_hit=Duration(self._cache_hit_count, self._cache_hit_ns),
            cache_miss=Duration(self._cache_miss_count, self._cache_miss_ns),
        )

    def batches(self) -> tuple[BatchStatistics, ...]:
        """Per batch size, ascending."""
        return tuple(
            BatchStatistics(
                batch_size=size,
                compute_input=Duration(row[0], row[1]),
                compute_infer=Duration(row[0], row[2]),
                compute_output=Duration(row[0], row[3]),
            )
            for size, row in sorted(self._batches.items())
        )

    def executed_and_refused(self) -> tuple[int, int]:
        """Requests that instances have executed, well or not, and requests that were refused because there was too much to do."""
        failures = self._failures
        executed = self._success_count - self._cache_hit_count + failures[FailureReason.BACKEND] + failures[FailureReason.OTHER]
        return executed, self._refused_full + failures[FailureReason.REJECTED]

    def failures(self) -> FailureCounts:
        """Failed requests, by reason."""
        return FailureCounts(
            rejected=self._failures[FailureReason.REJECTED],
            canceled=self._failures[FailureReason.CANCELED],
            backend=self._failures[FailureReason.BACKEND],
            other=self._failures[FailureReason.OTHER],
            refused_invalid=self._refused_invalid,
            refused_queue_full=self._refused_full,
            refused_unavailable=self._refused_unavailable,
        )
