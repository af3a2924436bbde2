"""Metrics about models, with Triton's family names and labels.

Families are declared once, in FAMILIES and LATENCY_FAMILIES, and computed from statistics when somebody asks: the hot path never
touches a metric.
prometheus-client is not used for writing because it appends `_total` to counters, and dashboards for Triton expect the bare name.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from tpy.config.histograms import COMPUTE_DURATION, FIRST_RESPONSE, QUEUE_DURATION, REQUEST_DURATION
from tpy.messages import Histogram, MemoryGrowth, ModelStatistics
from tpy.telemetry.exposition import MeasuredFamily, MetricKind, Sample, openmetrics_page, text_page
from tpy.units import NS_PER_S, NS_PER_US


class ModelFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A family with one or more samples per model version. `values` yields (extra labels, value)."""

    name: str
    kind: MetricKind
    help: str
    values: Callable[[ModelStatistics], Iterable[tuple[Mapping[str, str], float]]]
    of_cache: bool = False
    """Of servers with a response cache only."""
    latency: bool = False
    """A counter of latencies: `--metrics-config counter_latencies=false` switches those off."""


NO_LABELS: Mapping[str, str] = {}


def _one(read: Callable[[ModelStatistics], float]) -> Callable[[ModelStatistics], Iterable[tuple[Mapping[str, str], float]]]:
    return lambda stats: ((NO_LABELS, read(stats)),)


def _of_cache(read: Callable[[ModelStatistics], float]) -> Callable[[ModelStatistics], Iterable[tuple[Mapping[str, str], float]]]:
    """Of models whose answers are kept only."""
    return lambda stats: ((NO_LABELS, read(stats)),) if stats.caches else ()


def _failures(stats: ModelStatistics) -> Iterator[tuple[Mapping[str, str], float]]:
    counts = stats.failures
    yield {"reason": "OTHER"}, counts.other
    yield {"reason": "BACKEND"}, counts.backend
    yield {"reason": "CANCELED"}, counts.canceled
    yield {"reason": "REJECTED"}, counts.rejected


def _refusals(stats: ModelStatistics) -> Iterator[tuple[Mapping[str, str], float]]:
    counts = stats.failures
    yield {"reason": "INVALID"}, counts.refused_invalid
    yield {"reason": "QUEUE_FULL"}, counts.refused_queue_full
    yield {"reason": "UNAVAILABLE"}, counts.refused_unavailable


def _memory(stats: ModelStatistics) -> Iterator[tuple[Mapping[str, str], float]]:
    for usage in stats.memory_usage:
        yield {"type": usage.kind, "id": str(usage.id)}, usage.byte_size


def _trend(stats: ModelStatistics) -> Iterator[tuple[Mapping[str, str], float]]:
    if stats.memory_growths:
        yield NO_LABELS, sum(growth.trend_bytes for growth in stats.memory_growths)


def _leaking(stats: ModelStatistics) -> Iterator[tuple[Mapping[str, str], float]]:
    if stats.memory_growths:
        yield NO_LABELS, sum(growth.leaks for growth in stats.memory_growths)


FAMILIES: Sequence[ModelFamily] = (
    ModelFamily(
        name="nv_inference_request_success",
        kind=MetricKind.COUNTER,
        help="Number of successful inference requests, all batch sizes",
        values=_one(lambda s: s.inference.success.count),
    ),
    ModelFamily(
        name="nv_inference_request_failure",
        kind=MetricKind.COUNTER,
        help="Number of failed inference requests, all batch sizes",
        values=_failures,
    ),
    ModelFamily(
        name="nv_inference_count",
        kind=MetricKind.COUNTER,
        help="Number of inferences performed (does not include cached requests)",
        values=_one(lambda s: s.inference_count),
    ),
    ModelFamily(
        name="nv_inference_exec_count",
        kind=MetricKind.COUNTER,
        help="Number of model executions performed (does not include cached requests)",
        values=_one(lambda s: s.execution_count),
    ),
    ModelFamily(
        name="nv_inference_request_duration_us",
        kind=MetricKind.COUNTER,
        help="Cumulative inference request duration in microseconds (includes cached requests)",
        values=_one(lambda s: s.inference.success.ns // NS_PER_US),
        latency=True,
    ),
    ModelFamily(
        name="nv_inference_queue_duration_us",
        kind=MetricKind.COUNTER,
        help="Cumulative inference queuing duration in microseconds (includes cached requests)",
        values=_one(lambda s: s.inference.queue.ns // NS_PER_US),
        latency=True,
    ),
    ModelFamily(
        name="nv_inference_compute_input_duration_us",
        kind=MetricKind.COUNTER,
        help="Cumulative compute input duration in microseconds (does not include cached requests)",
        values=_one(lambda s: s.inference.compute_input.ns // NS_PER_US),
        latency=True,
    ),
    ModelFamily(
        name="nv_inference_compute_infer_duration_us",
        kind=MetricKind.COUNTER,
        help="Cumulative compute inference duration in microseconds (does not include cached requests)",
        values=_one(lambda s: s.inference.compute_infer.ns // NS_PER_US),
        latency=True,
    ),
    ModelFamily(
        name="nv_inference_compute_output_duration_us",
        kind=MetricKind.COUNTER,
        help="Cumulative inference compute output duration in microseconds (does not include cached requests)",
        values=_one(lambda s: s.inference.compute_output.ns // NS_PER_US),
        latency=True,
    ),
    ModelFamily(
        name="nv_cache_num_hits_per_model",
        kind=MetricKind.COUNTER,
        help="Number of cache hits per model",
        values=_of_cache(lambda s: s.inference.cache_hit.count),
        of_cache=True,
        latency=True,
    ),
    ModelFamily(
        name="nv_cache_hit_duration_per_model",
        kind=MetricKind.COUNTER,
        help="Total cache hit duration per model, in microseconds",
        values=_of_cache(lambda s: s.inference.cache_hit.ns // NS_PER_US),
        of_cache=True,
        latency=True,
    ),
    ModelFamily(
        name="nv_cache_num_misses_per_model",
        kind=MetricKind.COUNTER,
        help="Number of cache misses per model",
        values=_of_cache(lambda s: s.inference.cache_miss.count),
        of_cache=True,
        latency=True,
    ),
    ModelFamily(
        name="nv_cache_miss_duration_per_model",
        kind=MetricKind.COUNTER,
        help="Total cache miss (insert+lookup) duration per model, in microseconds",
        values=_of_cache(lambda s: s.inference.cache_miss.ns // NS_PER_US),
        of_cache=True,
        latency=True,
    ),
    ModelFamily(
        name="nv_inference_pending_request_count",
        kind=MetricKind.GAUGE,
        help="Instantaneous number of pending requests awaiting execution per-model.",
        values=_one(lambda s: s.pending_requests),
    ),
    ModelFamily(
        name="nv_model_load_duration_secs",
        kind=MetricKind.GAUGE,
        help="Duration of the last load of the model, in seconds",
        values=_one(lambda s: s.load_duration_ns / NS_PER_S),
    ),
    ModelFamily(
        name="tpy_model_memory_bytes",
        kind=MetricKind.GAUGE,
        help="Memory of the model by type and id of the device, measured when it and its instances were loaded",
        values=_memory,
    ),
    ModelFamily(
        name="tpy_model_memory_trend_bytes",
        kind=MetricKind.GAUGE,
        help="Bytes that the processes of the model's instances have grown by over the last hour, per 1,000 requests",
        values=_trend,
    ),
    ModelFamily(
        name="tpy_model_leaking_instances",
        kind=MetricKind.GAUGE,
        help="Number of instances whose processes leak memory",
        values=_leaking,
    ),
    ModelFamily(
        name="tpy_model_long_execution_seconds",
        kind=MetricKind.GAUGE,
        help="Seconds for which an instance has been executing without finishing a batch, 0 while that is not long",
        values=_one(lambda s: s.executing_s),
    ),
    ModelFamily(
        name="tpy_load",
        kind=MetricKind.GAUGE,
        help="Demanded over available time of the instances, smoothed: 0 idle, 1 full, 3 for three times as much as they can do",
        values=lambda stats: () if stats.load is None else ((NO_LABELS, round(stats.load, 4)),),
    ),
    ModelFamily(
        name="tpy_instance_restarts_total",
        kind=MetricKind.COUNTER,
        help="Number of instances that failed and were started again, since the model was loaded",
        values=_one(lambda s: s.instance_restarts),
    ),
    ModelFamily(
        name="tpy_inference_refused_total",
        kind=MetricKind.COUNTER,
        help="Number of inference requests refused before they were queued",
        values=_refusals,
    ),
)


LATENCY_FAMILIES: Mapping[str, tuple[MetricKind, str]] = {
    FIRST_RESPONSE: (MetricKind.HISTOGRAM, "Duration from request to first response in milliseconds"),
    REQUEST_DURATION: (MetricKind.HISTOGRAM, "Seconds from acceptance to answer, of successful requests"),
    QUEUE_DURATION: (MetricKind.HISTOGRAM, "Seconds in the queue, of successful requests"),
    COMPUTE_DURATION: (MetricKind.HISTOGRAM, "Seconds that the batch of a successful request was executed"),
    "nv_inference_request_summary_us": (
        MetricKind.SUMMARY,
        "Summary of inference request duration in microseconds (includes cached requests)",
    ),
    "nv_inference_queue_summary_us": (
        MetricKind.SUMMARY,
        "Summary of inference queuing duration in microseconds (includes cached requests)",
    ),
    "nv_inference_compute_input_summary_us": (
        MetricKind.SUMMARY,
        "Cumulative compute input duration in microseconds (does not include cached requests)",
    ),
    "nv_inference_compute_infer_summary_us": (
        MetricKind.SUMMARY,
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
    ),
    "nv_inference_compute_output_summary_us": (
        MetricKind.SUMMARY,
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
    ),
    "nv_cache_hit_summary_per_model": (
        MetricKind.SUMMARY,
        "Summary of cache hit counts/durations per model, in microseconds.",
    ),
    "nv_cache_miss_summary_per_model": (
        MetricKind.SUMMARY,
        "Summary of cache miss counts/durations per model, in microseconds.",
    ),
}
"""The families of `ModelStatistics.latencies`; Triton's texts for its own families."""

REFUSED = "tpy_requests_refused_total"
DROPPED_LINES = "tpy_log_lines_dropped_total"
SERVER_LOAD = "tpy_server_load"
SERVER_TREND = "tpy_server_memory_trend_bytes"
SERVER_LEAKS = "tpy_server_leaks"
BATCH_SIZE = "tpy_inference_batch_size"
_BATCH_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


def model_families(
    models: Sequence[ModelStatistics], *, counter_latencies: bool = True, caching: bool = False, namespacing: bool = False
) -> Iterator[MeasuredFamily]:
    """The families about models. Those of the response cache are there only where there is one (`caching`)."""
    labels = [_model_labels(stats, namespacing=namespacing) for stats in models]
    for family in FAMILIES:
        if (family.latency and not counter_latencies) or (family.of_cache and not caching):
            continue
        samples = [
            Sample({**base, **extra}, value)
            for stats, base in zip(models, labels, strict=True)
            for extra, value in family.values(stats)
        ]
        yield MeasuredFamily(name=family.name, kind=family.kind, help=family.help, samples=samples)
    yield MeasuredFamily(
        name=BATCH_SIZE,
        kind=MetricKind.HISTOGRAM,
        help="Rows of executed batches, of models that batch",
        samples=[_batch_sizes(stats, base) for stats, base in zip(models, labels, strict=True) if stats.max_batch_size > 1],
    )
    found: dict[str, list[Sample]] = {}
    for stats, base in zip(models, labels, strict=True):
        for each in stats.latencies:
            found.setdefault(each.family, []).append(Sample(base, each.total, each.histogram, each.summary))
    for name, (kind, text) in LATENCY_FAMILIES.items():
        if name in found:
            yield MeasuredFamily(name=name, kind=kind, help=text, samples=found[name])


def render(
    models: Sequence[ModelStatistics],
    host: Sequence[MeasuredFamily] = (),
    *,
    custom: Sequence[MeasuredFamily] = (),
    openmetrics: bool = False,
    counter_latencies: bool = True,
    caching: bool = False,
    namespacing: bool = False,
) -> bytes:
    """The whole page: families about models, `host`, and families that models make themselves (`custom`)."""
    of_models = model_families(models, counter_latencies=counter_latencies, caching=caching, namespacing=namespacing)
    families = [*of_models, *host, *custom]
    return openmetrics_page(families) if openmetrics else text_page(families)


def refused_family(counts: Mapping[str, int]) -> MeasuredFamily:
    """The family of what ports refused before a model had it, by its reason."""
    samples = [Sample({"reason": reason}, count) for reason, count in counts.items()]
    text = "Number of inference requests that a port refused before a model had them"
    return MeasuredFamily(name=REFUSED, kind=MetricKind.COUNTER, help=text, samples=samples)


def server_load_family(models: Iterable[ModelStatistics]) -> MeasuredFamily:
    """The highest load of the models, for what scales whole servers."""
    load = max((stats.load for stats in models if stats.load is not None), default=0.0)
    text = "The highest tpy_load of the models that are loaded"
    return MeasuredFamily(name=SERVER_LOAD, kind=MetricKind.GAUGE, help=text, samples=[Sample(NO_LABELS, round(load, 4))])


def server_growth_families(growth: MemoryGrowth | None) -> Iterator[MeasuredFamily]:
    """The families of the memory of the server's own process, without samples before its growth is known."""
    known = [] if growth is None else [growth]
    yield MeasuredFamily(
        name=SERVER_TREND,
        kind=MetricKind.GAUGE,
        help="Bytes that the server's own process has grown by over the last hour, per 1,000 requests",
        samples=[Sample(NO_LABELS, each.trend_bytes) for each in known],
    )
    yield MeasuredFamily(
        name=SERVER_LEAKS,
        kind=MetricKind.GAUGE,
        help="1 while the server's own process leaks memory, else 0",
        samples=[Sample(NO_LABELS, each.leaks) for each in known],
    )


def dropped_lines_family(counts: Mapping[str, int]) -> MeasuredFamily:
    """The family of lines that a log lost, by the log."""
    samples = [Sample({"log": log}, count) for log, count in counts.items()]
    text = "Number of lines that were dropped because they could not be written in time"
    return MeasuredFamily(name=DROPPED_LINES, kind=MetricKind.COUNTER, help=text, samples=samples)


def _batch_sizes(stats: ModelStatistics, labels: Mapping[str, str]) -> Sample:
    counts = [0] * (len(_BATCH_SIZES) + 1)
    rows = 0
    for batch in stats.batches:
        executed = batch.compute_infer.count
        counts[bisect.bisect_left(_BATCH_SIZES, batch.batch_size)] += executed
        rows += batch.batch_size * executed
    return Sample(labels, rows, Histogram(_BATCH_SIZES, tuple(counts)))


def _model_labels(stats: ModelStatistics, *, namespacing: bool) -> dict[str, str]:
    labels = {"model": stats.name, "version": str(stats.version)}
    if namespacing:
        labels["namespace"] = stats.namespace
    labels.update((f"_{key}", value) for key, value in stats.metric_tags)
    return labels
