"""The statistics extension's numbers. All times are cumulative nanoseconds, all counts since the version was loaded."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Duration(msgspec.Struct, frozen=True):
    """A count, and the total time in nanoseconds."""

    count: int = 0
    ns: int = 0

    def since(self, before: Duration) -> Duration:
        """The difference to an earlier value."""
        return Duration(self.count - before.count, self.ns - before.ns)


class InferenceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Per request. `success.count` equals `queue.count`; `compute_*.count` excludes cache hits; a failed request is in `fail`
    only. The compute times of a request are those of the whole batch it was in."""

    success: Duration = Duration()
    fail: Duration = Duration()
    queue: Duration = Duration()
    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()
    cache_hit: Duration = Duration()
    cache_miss: Duration = Duration()


class BatchStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Per executed batch of this size."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class ResponseStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Of decoupled models, per index of a response within its request, which counts from 0. `compute_infer` is from the response
    before (or the start of the batch) until the model sent this one, `compute_output` from then until it was delivered;
    `success`, `fail`, `empty_response` and `cancel` are both together, of responses with outputs, with an error, with neither
    (a final flag alone, or no outputs), and of responses that would have been next when the request was cancelled."""

    index: int
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()
    success: Duration = Duration()
    fail: Duration = Duration()
    empty_response: Duration = Duration()
    cancel: Duration = Duration()


class MemoryUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a model on one device: `kind` is "CPU" or "GPU". `is_growth`: at least some of it is what the device, or the
    server, grew by meanwhile, so it may be that of others."""

    kind: str
    id: int
    byte_size: int
    is_growth: bool = False


class MemoryGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """The growth of a process's memory over `period_ns`, an hour at most, in which `requests` were served: from `first_bytes` to
    `last_bytes`, the lowest of the first and the last sixth of that time. `trend_bytes` are the bytes per 1,000 requests, in
    single sixths between `trend_bytes_min` and `trend_bytes_max`."""

    first_bytes: int
    last_bytes: int
    requests: int
    period_ns: int
    trend_bytes: int
    trend_bytes_min: int
    trend_bytes_max: int
    leaks: bool


class FailureCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Failed requests by the `reason` label of nv_inference_request_failure, and those refused on arrival: `refused_invalid` were
    malformed, `refused_queue_full` found a full queue, `refused_unavailable` a version that takes none any more. Triton does not
    count the latter three, so they have a separate family."""

    rejected: int = 0
    canceled: int = 0
    backend: int = 0
    other: int = 0
    refused_invalid: int = 0
    refused_queue_full: int = 0
    refused_unavailable: int = 0

    @property
    def refused_admission(self) -> int:
        """All that were refused on arrival."""
        return self.refused_invalid + self.refused_queue_full + self.refused_unavailable


class Exemplar(msgspec.Struct, frozen=True, gc=False):
    """One observation of a histogram's bucket, with the trace that its request is in. `at_ms` is wall-clock time."""

    trace_id: str
    value: float
    at_ms: int


class Histogram(msgspec.Struct, frozen=True, gc=False):
    """Observations per bucket: `counts` has one entry per upper bound in `buckets` and one for what is above all of them; so has
    `exemplars`, where there are any."""

    buckets: tuple[float, ...]
    counts: tuple[int, ...]
    exemplars: tuple[Exemplar | None, ...] = ()


class Summary(msgspec.Struct, frozen=True):
    """Durations: `quantiles` are to be found among the newest, which `slices` counts by their leading bits
    (`tpy.telemetry.latencies`); `count` is of all."""

    quantiles: tuple[float, ...]
    slices: tuple[Mapping[int, int], ...]
    count: int


class Latency(msgspec.Struct, frozen=True):
    """A distribution of durations: the series of a model in the metric family of this name. `total` is the sum of all
    observations."""

    family: str
    total: float
    histogram: Histogram | None = None
    summary: Summary | None = None


class CacheStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The response cache as a whole, since the server started. `bytes_max` 0: its size is somebody else's business."""

    bytes_max: int = 0
    bytes_used: int = 0
    entries: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_us: int = 0
    insertion_us: int = 0


class ModelCounters(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One model version in the overview: what of its statistics is compared from moment to moment. Times are sums in nanoseconds
    over `requests`, the successful ones; `last_request_ms` and `memory_bytes` as in `ModelStatistics`, of all devices."""

    name: str
    version: int
    namespace: str = ""
    requests: int = 0
    failures: int = 0
    inferences: int = 0
    executions: int = 0
    latency_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    last_request_ms: int = 0
    memory_bytes: int = 0


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a server for load balancers, by the names of ORCA's OrcaLoadReport: `numbers` are its own fields, `named` what
    is in its `named_metrics`."""

    numbers: dict[str, float] = {}
    named: dict[str, float] = {}


class ModelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One model version. `inference_count` sums batch sizes of successful requests, `execution_count` counts executed batches,
    `last_inference_ms` is wall-clock milliseconds since the epoch, 0 for never. `pending_requests` wait in the queue now.
    `caches`: its answers are kept in the response cache. `executing_s`: seconds for which an instance of it executes without
    finishing a batch, where that is long. `load`: demanded over available time of its instances, None without any.
    `instance_restarts`: failed instances that were started again. `latencies` are there for the metrics page only, where
    --metrics-config asks for them.
    `memory_growths` are those of its instances in separate processes, once they are known.
    `max_batch_size` is that of its configuration. `generation` has the numbers of an engine, by name."""

    name: str
    version: int
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    inference: InferenceStatistics = InferenceStatistics()
    batches: tuple[BatchStatistics, ...] = ()
    responses: tuple[ResponseStatistics, ...] = ()
    memory_usage: tuple[MemoryUsage, ...] = ()
    memory_growths: tuple[MemoryGrowth, ...] = ()
    failures: FailureCounts = FailureCounts()
    pending_requests: int = 0
    load_duration_ns: int = 0
    namespace: str = ""
    metric_tags: tuple[tuple[str, str], ...] = ()
    caches: bool = False
    executing_s: float = 0.0
    load: float | None = None
    instance_restarts: int = 0
    latencies: tuple[Latency, ...] = ()
    max_batch_size: int = 0
    generation: Mapping[str, float] = {}
