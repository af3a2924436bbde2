"""VersionLatencies: the distributions of a model version's durations, as histograms and summaries. There is one only where
--metrics-config asks for it; it is written on the Trio thread only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tpy.clock import Clock
from tpy.config import ModelConfig, histogram_buckets
from tpy.config.histograms import COMPUTE_DURATION, FIRST_RESPONSE, QUEUE_DURATION, REQUEST_DURATION
from tpy.messages import Latency, RequestRecord
from tpy.telemetry.latencies import DurationHistogram, LatencyOptions, QuantileWindow
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_data.engine.requests.handle import Execution


class CountedRequest(Protocol):
    """A request, as far as statistics count it. `queued_ns` is when it came to its scheduler."""

    @property
    def batch_size(self) -> int: ...

    @property
    def queued_ns(self) -> int: ...

    @property
    def record(self) -> RequestRecord | None: ...


class VersionLatencies:
    """Of all that was answered with outputs; first responses also of what failed later."""

    def __init__(self, options: LatencyOptions, config: ModelConfig, clock: Clock) -> None:
        self._clock = clock
        self._quantiles = options.quantiles
        self._histograms = _Histograms(config) if options.histograms else None
        self._summaries = _Summaries() if options.summaries else None
        self._answers_once = not config.decoupled and config.ensemble_scheduling is None
        """True if the answer is the first response; else `first_response` tells of it."""

    def succeeded(self, requests: Iterable[tuple[CountedRequest, Execution]], now_ns: int) -> None:
        """As `VersionStatistics.succeeded`."""
        histograms, summaries = self._histograms, self._summaries
        for request, execution in requests:
            if histograms is not None:
                histograms.succeeded(request, execution, now_ns, self._clock)
                if self._answers_once:
                    self.first_response(request, now_ns)
            if summaries is not None:
                summaries.succeeded(request.queued_ns, execution, now_ns)

    def first_response(self, request: CountedRequest, now_ns: int) -> None:
        """The model has sent the first response to the request. Whole milliseconds count, as in Triton."""
        if self._histograms is not None:
            duration_ns = (now_ns - request.queued_ns) // NS_PER_MS * NS_PER_MS
            self._histograms.first_response.add(duration_ns)
            if request.record is not None and (trace_id := request.record.trace_id):
                self._histograms.first_response.mark(duration_ns, trace_id, self._clock.wall_ms())

    def cache_hit(self, taken_ns: int, queue_ns: int, lookup_ns: int) -> None:
        """As `VersionStatistics.cache_hit`."""
        if self._histograms is not None:
            self._histograms.request.add(taken_ns)
            self._histograms.queue.add(queue_ns)
            self._histograms.first_response.add(taken_ns // NS_PER_MS * NS_PER_MS)
        if self._summaries is not None:
            now_ns = self._clock.now_ns()
            self._summaries.queue.add(queue_ns, now_ns)
            self._summaries.hit.add(lookup_ns, now_ns)

    def cache_miss(self, miss_ns: int) -> None:
        """A request that succeeded was not in the response cache: lookup, and insertion where there was one."""
        if self._summaries is not None:
            self._summaries.miss.add(miss_ns, self._clock.now_ns())

    def snapshot(self, *, caches: bool) -> tuple[Latency, ...]:
        """The distributions now. As in Triton, a model whose answers are cached has no summary of whole requests, but of the
        cache."""
        found = []
        if (histograms := self._histograms) is not None:
            kept = (histograms.request, histograms.queue, histograms.compute, histograms.first_response)
            found = [histogram.snapshot() for histogram in kept]
        if (summaries := self._summaries) is not None:
            now_ns = self._clock.now_ns()
            phases = (summaries.queue, summaries.input, summaries.infer, summaries.output)
            of_cache = (summaries.hit, summaries.miss)
            windows = (*phases, *of_cache) if caches else (summaries.request, *phases)
            found += [window.snapshot(self._quantiles, now_ns) for window in windows]
        return tuple(found)


class _Histograms:
    __slots__ = ("compute", "first_response", "queue", "request")

    def __init__(self, config: ModelConfig) -> None:
        buckets = histogram_buckets(config)
        self.request = DurationHistogram(REQUEST_DURATION, buckets[REQUEST_DURATION], NS_PER_S)
        self.queue = DurationHistogram(QUEUE_DURATION, buckets[QUEUE_DURATION], NS_PER_S)
        self.compute = DurationHistogram(COMPUTE_DURATION, buckets[COMPUTE_DURATION], NS_PER_S)
        self.first_response = DurationHistogram(FIRST_RESPONSE, buckets[FIRST_RESPONSE], NS_PER_MS)

    def succeeded(self, request: CountedRequest, execution: Execution, now_ns: int, clock: Clock) -> None:
        start_ns, input_ns, infer_ns, output_ns = execution
        request_ns, queue_ns, compute_ns = (
            now_ns - request.queued_ns,
            start_ns - request.queued_ns,
            input_ns + infer_ns + output_ns,
        )
        self.request.add(request_ns)
        self.queue.add(queue_ns)
        self.compute.add(compute_ns)
        if request.record is not None and (trace_id := request.record.trace_id):
            at_ms = clock.wall_ms()
            self.request.mark(request_ns, trace_id, at_ms)
            self.queue.mark(queue_ns, trace_id, at_ms)
            self.compute.mark(compute_ns, trace_id, at_ms)


class _Summaries:
    """Triton's."""

    __slots__ = ("hit", "infer", "input", "miss", "output", "queue", "request")

    def __init__(self) -> None:
        self.request = QuantileWindow("nv_inference_request_summary_us")
        self.queue = QuantileWindow("nv_inference_queue_summary_us")
        self.input = QuantileWindow("nv_inference_compute_input_summary_us")
        self.infer = QuantileWindow("nv_inference_compute_infer_summary_us")
        self.output = QuantileWindow("nv_inference_compute_output_summary_us")
        self.hit = QuantileWindow("nv_cache_hit_summary_per_model")
        self.miss = QuantileWindow("nv_cache_miss_summary_per_model")

    def succeeded(self, queued_ns: int, execution: Execution, now_ns: int) -> None:
        start_ns, input_ns, infer_ns, output_ns = execution
        self.request.add(now_ns - queued_ns, now_ns)
        self.queue.add(start_ns - queued_ns, now_ns)
        self.input.add(input_ns, now_ns)
        self.infer.add(infer_ns, now_ns)
        self.output.add(output_ns, now_ns)
