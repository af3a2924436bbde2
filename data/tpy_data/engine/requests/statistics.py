"""VersionStatistics: the counters of one model version, of the statistics extension and of our failure reasons.

All are integers and written on the Trio thread only. Triton's identities hold: `success.count == queue.count`; a failed request
is in `fail` only; the compute times of a request are those of its whole batch.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from tpy.messages import BatchStatistics, Duration, InferenceStatistics
from tpy.messages.statistics import FailureCounts
from tpy_data.engine.requests.handle import Execution
from tpy_data.engine.requests.response_statistics import ResponseCounters
from tpy_data.schedulers.core.contract import Outcome, Ticket


class Failure(enum.Enum):
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
    Outcome.TIMED_OUT: Failure.REJECTED,
    Outcome.SEQUENCE_TIMED_OUT: Failure.REJECTED,
    Outcome.CANCELLED: Failure.CANCELED,
    Outcome.SEQUENCE_LOST: Failure.BACKEND,
}


class VersionStatistics:
    """Counts from when the version was loaded. `responses` are those of a decoupled model."""

    __slots__ = (
        "_batches",
        "_cache_hit_count",
        "_cache_hit_ns",
        "_cache_miss_count",
        "_cache_miss_ns",
        "_execution_count",
        "_fail_ns",
        "_failures",
        "_infer_ns",
        "_inference_count",
        "_input_ns",
        "_last_inference_ms",
        "_output_ns",
        "_queue_ns",
        "_refused",
        "_success_count",
        "_success_ns",
        "responses",
    )

    def __init__(self) -> None:
        self._success_count = self._success_ns = 0
        self._queue_ns = self._input_ns = self._infer_ns = self._output_ns = 0
        self._fail_ns = 0
        self._inference_count = self._execution_count = 0
        self._last_inference_ms = 0
        self._failures = dict.fromkeys(Failure, 0)
        self._refused = 0
        self._cache_hit_count = self._cache_hit_ns = self._cache_miss_count = self._cache_miss_ns = 0
        self.responses = ResponseCounters()
        self._batches: dict[int, list[int]] = {}  # size -> count, input ns, infer ns, output ns

    def executed(self, batches: Iterable[tuple[int, Execution]], wall_ms: int) -> None:
        """Batches of so many rows, with these times, were executed, whether well or not."""
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

    def succeeded(self, requests: Iterable[tuple[Ticket, Execution]], now_ns: int) -> None:
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

    def failed(self, ticket: Ticket, failure: Failure, now_ns: int) -> None:
        """The request was answered with an error, or not at all."""
        self._failures[failure] += 1
        self._fail_ns += now_ns - ticket.queued_ns

    def refused(self, ticket: Ticket, outcome: Outcome, now_ns: int) -> None:
        """Its scheduler refused the request after it had accepted it."""
        self.failed(ticket, _FAILURES.get(outcome, Failure.OTHER), now_ns)

    def refused_admission(self) -> None:
        """It was not accepted: invalid, or the queue was full. Not a failure in Triton's numbers."""
        self._refused += 1

    def cache_hit(self, taken_ns: int, queue_ns: int, lookup_ns: int) -> None:
        """A request was answered from the response cache: a success that was not executed."""
        self._success_count += 1
        self._success_ns += taken_ns
        self._queue_ns += queue_ns
        self._cache_hit_count += 1
        self._cache_hit_ns += lookup_ns

    def cache_missed(self, lookup_ns: int, before_ns: int) -> None:
        """A request that succeeded was not in the response cache: it came to its scheduler `before_ns` after its arrival, of
        which `lookup_ns` were the cache's, and the rest a wait for an equal request."""
        self._success_ns += before_ns
        self._queue_ns += before_ns - lookup_ns
        self._cache_miss_count += 1
        self._cache_miss_ns += lookup_ns

    def cache_inserted(self, insertion_ns: int) -> None:
        """Its answer was inserted."""
        self._success_ns += insertion_ns
        self._cache_miss_ns += insertion_ns

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

    def inference(self) -> InferenceStatistics:
        """The cumulative durations."""
        count = self._success_count
        executed = count - self._cache_hit_count
        return InferenceStatistics(
            success=Duration(count, self._success_ns),
            fail=Duration(sum(self._failures.values()), self._fail_ns),
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

    def failures(self) -> FailureCounts:
        """Failed requests, by reason."""
        return FailureCounts(
            rejected=self._failures[Failure.REJECTED],
            canceled=self._failures[Failure.CANCELED],
            backend=self._failures[Failure.BACKEND],
            other=self._failures[Failure.OTHER],
            refused_admission=self._refused,
        )
