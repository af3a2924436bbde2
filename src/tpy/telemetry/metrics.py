"""Prometheus metrics with Triton's family names and labels, text format 0.0.4.

Families are declared once, in FAMILIES, and computed from statistics when somebody asks: the hot path never touches a metric.
prometheus-client is not used for writing because it appends `_total` to counters, and dashboards for Triton expect the bare name.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from tpy.messages import ModelStatistics
from tpy.units import NS_PER_S, NS_PER_US

_PLAIN_MAX = 1e16
"""From here on a double does not hold every whole number: written with an exponent."""


class MetricKind(enum.Enum):
    """Prometheus metric types that we write."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Histogram(msgspec.Struct, frozen=True, gc=False):
    """Observations per bucket: `counts` has one entry per upper bound in `buckets` and one for what is above all of them."""

    buckets: tuple[float, ...]
    counts: tuple[int, ...]


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One value of a family with its labels; of a histogram, `value` is the sum of what was observed. A page may have thousands,
    which the garbage collector need not look at."""

    labels: Mapping[str, str]
    value: float
    histogram: Histogram | None = None


class ModelFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A family with one or more samples per model version. `values` yields (extra labels, value)."""

    name: str
    kind: MetricKind
    help: str
    values: Callable[[ModelStatistics], Iterable[tuple[Mapping[str, str], float]]]
    of_cache: bool = False
    """Of servers with a response cache only."""
    counter_latencies: bool = True
    """Belongs to the group that `--metrics-config counter_latencies=false` switches off."""


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


def _memory(stats: ModelStatistics) -> Iterator[tuple[Mapping[str, str], float]]:
    for usage in stats.memory_usage:
        yield {"type": usage.kind, "id": str(usage.id)}, usage.byte_size


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
    ),
    ModelFamily(
        name="nv_inference_queue_duration_us",
        kind=MetricKind.COUNTER,
        help="Cumulative inference queuing duration in microseconds (includes cached requests)",
        values=_one(lambda s: s.inference.queue.ns // NS_PER_US),
    ),
    ModelFamily(
        name="nv_inference_compute_input_duration_us",
        kind=MetricKind.COUNTER,
        help="Cumulative compute input duration in microseconds (does not include cached requests)",
        values=_one(lambda s: s.inference.compute_input.ns // NS_PER_US),
    ),
    ModelFamily(
        name="nv_inference_compute_infer_duration_us",
        kind=MetricKind.COUNTER,
        help="Cumulative compute inference duration in microseconds (does not include cached requests)",
        values=_one(lambda s: s.inference.compute_infer.ns // NS_PER_US),
    ),
    ModelFamily(
        name="nv_inference_compute_output_duration_us",
        kind=MetricKind.COUNTER,
        help="Cumulative inference compute output duration in microseconds (does not include cached requests)",
        values=_one(lambda s: s.inference.compute_output.ns // NS_PER_US),
    ),
    ModelFamily(
        name="nv_cache_num_hits_per_model",
        kind=MetricKind.COUNTER,
        help="Number of cache hits per model",
        values=_of_cache(lambda s: s.inference.cache_hit.count),
        of_cache=True,
    ),
    ModelFamily(
        name="nv_cache_hit_duration_per_model",
        kind=MetricKind.COUNTER,
        help="Total cache hit duration per model, in microseconds",
        values=_of_cache(lambda s: s.inference.cache_hit.ns // NS_PER_US),
        of_cache=True,
    ),
    ModelFamily(
        name="nv_cache_num_misses_per_model",
        kind=MetricKind.COUNTER,
        help="Number of cache misses per model",
        values=_of_cache(lambda s: s.inference.cache_miss.count),
        of_cache=True,
    ),
    ModelFamily(
        name="nv_cache_miss_duration_per_model",
        kind=MetricKind.COUNTER,
        help="Total cache miss (insert+lookup) duration per model, in microseconds",
        values=_of_cache(lambda s: s.inference.cache_miss.ns // NS_PER_US),
        of_cache=True,
    ),
    ModelFamily(
        name="nv_inference_pending_request_count",
        kind=MetricKind.GAUGE,
        help="Instantaneous number of pending requests awaiting execution per-model.",
        values=_one(lambda s: s.pending_requests),
        counter_latencies=False,
    ),
    ModelFamily(
        name="nv_model_load_duration_secs",
        kind=MetricKind.GAUGE,
        help="Duration of the last load of the model, in seconds",
        values=_one(lambda s: s.load_duration_ns / NS_PER_S),
        counter_latencies=False,
    ),
    ModelFamily(
        name="tpy_model_memory_bytes",
        kind=MetricKind.GAUGE,
        help="Memory of the model by type and id of the device, measured when it and its instances were loaded",
        values=_memory,
        counter_latencies=False,
    ),
    ModelFamily(
        name="tpy_model_long_execution_seconds",
        kind=MetricKind.GAUGE,
        help="Seconds for which an instance has been executing without finishing a batch, 0 while that is not long",
        values=_one(lambda s: s.executing_s),
        counter_latencies=False,
    ),
    ModelFamily(
        name="tpy_inference_refused_at_admission",
        kind=MetricKind.COUNTER,
        help="Number of inference requests refused before they were queued: malformed, or the queue was full",
        values=_one(lambda s: s.failures.refused_admission),
        counter_latencies=False,
    ),
)


class MeasuredFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A family with its values: of the machine, or of models that make metrics themselves."""

    name: str
    kind: MetricKind
    help: str
    samples: Sequence[Sample]


def render(
    models: Sequence[ModelStatistics],
    host: Sequence[MeasuredFamily] = (),
    *,
    custom: Sequence[MeasuredFamily] = (),
    counter_latencies: bool = True,
    caching: bool = False,
    namespacing: bool = False,
) -> bytes:
    """The whole exposition. Families without samples are still announced, so that dashboards find them; those of the response
    cache only where there is one (`caching`)."""
    lines: list[str] = []
    labels = [_model_labels(stats, namespacing=namespacing) for stats in models]
    for family in FAMILIES:
        if (family.counter_latencies and not counter_latencies) or (family.of_cache and not caching):
            continue
        _announce(lines, family.name, family.kind, family.help)
        for stats, base in zip(models, labels, strict=True):
            for extra, value in family.values(stats):
                lines.append(f"{family.name}{_labels({**base, **extra})} {_number(value)}")
    for about in host:
        _announce(lines, about.name, about.kind, about.help)
        lines.extend(f"{about.name}{_labels(sample.labels)} {_number(sample.value)}" for sample in about.samples)
    for made in custom:
        _announce(lines, made.name, made.kind, _escape_help(made.help))
        for sample in made.samples:
            lines.extend(_custom_lines(made.name, sample))
    lines.append("")
    return "\n".join(lines).encode()


def _custom_lines(name: str, sample: Sample) -> Iterator[str]:
    """Texts come from models, and are escaped; so no value of theirs can make a line of its own."""
    if sample.histogram is None:
        yield f"{name}{_labels(sample.labels)} {_number(sample.value)}"
        return
    labels = _labels(sample.labels)
    yield f"{name}_count{labels} {sum(sample.histogram.counts)}"
    yield f"{name}_sum{labels} {_number(sample.value)}"
    bounds = (*map(_number, sample.histogram.buckets), "+Inf")
    for bound, count in zip(bounds, itertools.accumulate(sample.histogram.counts), strict=True):
        yield f"{name}_bucket{_labels(sample.labels, bound=bound)} {count}"


def _announce(lines: list[str], name: str, kind: MetricKind, text: str) -> None:
    if text:
        lines.append(f"# HELP {name} {text}")
    lines.append(f"# TYPE {name} {kind.value}")


def _model_labels(stats: ModelStatistics, *, namespacing: bool) -> dict[str, str]:
    labels = {"model": stats.name, "version": str(stats.version)}
    if namespacing:
        labels["namespace"] = stats.namespace
    labels.update((f"_{key}", value) for key, value in stats.metric_tags)
    return labels


def _labels(labels: Mapping[str, str], *, bound: str = "") -> str:
    """In alphabetical order, as Triton writes them, and the upper bound of a bucket last: scripts look for whole lines."""
    pairs = sorted(labels.items())
    if bound:
        pairs.append(("le", bound))
    if not pairs:
        return ""
    return "{" + ",".join(f'{key}="{_escape(value)}"' for key, value in pairs) + "}"


def _escape(value: str) -> str:
    return _escape_help(value).replace('"', '\\"')


def _escape_help(value: str) -> str:
    """Beside what the format says also carriage returns and half characters, which would make a line, or not be UTF-8."""
    value = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", " ")
    return value.encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < _PLAIN_MAX else repr(value)
