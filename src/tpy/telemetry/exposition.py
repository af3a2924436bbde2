"""The forms of the metrics page: Prometheus' text format 0.0.4, as Triton writes it, and OpenMetrics 1.0.

They have the same series. OpenMetrics also has exemplars, and wants counters to be called `_total`, as those of tpy are; Triton's
are not, and have the type `unknown` there, because another name would break every dashboard: Prometheus asks for OpenMetrics
unless it is told otherwise.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from tpy.messages import Exemplar, Histogram, Summary
from tpy.telemetry.latencies import quantiles_of

_PLAIN_MAX = 1e16
"""From here on a double does not hold every whole number: written with an exponent."""

_TOTAL = "_total"


class MetricKind(enum.Enum):
    """Prometheus metric types that we write."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One value of a family with its labels; of a histogram or summary, `value` is the sum of what was observed. A page may have
    thousands, which the garbage collector need not look at."""

    labels: Mapping[str, str]
    value: float
    histogram: Histogram | None = None
    summary: Summary | None = None


class MeasuredFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A family with its values."""

    name: str
    kind: MetricKind
    help: str
    samples: Sequence[Sample]


def text_page(families: Iterable[MeasuredFamily]) -> bytes:
    """The page in Prometheus' text format. Families without samples are still announced, so that dashboards find them."""
    lines: list[str] = []
    for family in families:
        name = family.name
        if family.help:
            lines.append(f"# HELP {name} {_escape_help(family.help)}")
        lines.append(f"# TYPE {name} {family.kind.value}")
        for sample in family.samples:
            if sample.histogram is not None:
                lines.extend(_totals(name, sample, sum(sample.histogram.counts)))
                lines.extend(f"{line} {count}" for line, count, _ in _buckets(name, sample, sample.histogram, _number))
            elif sample.summary is not None:
                lines.extend(_totals(name, sample, sample.summary.count))
                lines.extend(_quantiles(name, sample, sample.summary))
            else:
                lines.append(f"{name}{_labels(sample.labels)} {_number(sample.value)}")
    lines.append("")
    return "\n".join(lines).encode()


def openmetrics_page(families: Sequence[MeasuredFamily]) -> bytes:
    """The page in OpenMetrics."""
    names = {family.name for family in families}
    lines: list[str] = []
    for family in families:
        name, kind = family.name, family.kind.value
        if family.kind is MetricKind.COUNTER:
            stem = name.removesuffix(_TOTAL)
            name, kind = (name, "unknown") if stem in names else (stem, kind)
        if family.help:
            lines.append(f"# HELP {name} {_escape(family.help)}")
        lines.append(f"# TYPE {name} {kind}")
        for sample in family.samples:
            if (histogram := sample.histogram) is not None:
                for line, count, exemplar in _buckets(name, sample, histogram, _canonical):
                    lines.append(f"{line} {count}{_exemplar(exemplar)}")
                if not histogram.buckets or histogram.buckets[0] >= 0:  # there is no sum of what may be negative
                    lines.extend(_totals(name, sample, sum(histogram.counts)))
            elif sample.summary is not None:
                lines.extend(_quantiles(name, sample, sample.summary))
                lines.extend(_totals(name, sample, sample.summary.count))
            else:
                lines.append(f"{family.name}{_labels(sample.labels)} {_number(sample.value)}")
    lines.append("# EOF\n")
    return "\n".join(lines).encode()


def _totals(name: str, sample: Sample, count: int) -> Iterator[str]:
    labels = _labels(sample.labels)
    yield f"{name}_count{labels} {count}"
    yield f"{name}_sum{labels} {_number(sample.value)}"


def _buckets(
    name: str, sample: Sample, histogram: Histogram, write: Callable[[float], str]
) -> Iterator[tuple[str, int, Exemplar | None]]:
    """Of each bucket the name with labels, the count up to there, and the exemplar."""
    bounds = (*map(write, histogram.buckets), "+Inf")
    counts = itertools.accumulate(histogram.counts)
    exemplars = histogram.exemplars or itertools.repeat(None, len(bounds))
    for bound, count, exemplar in zip(bounds, counts, exemplars, strict=True):
        yield f"{name}_bucket{_labels(sample.labels, last=('le', bound))}", count, exemplar


def _quantiles(name: str, sample: Sample, summary: Summary) -> Iterator[str]:
    for quantile, value in quantiles_of(summary):
        yield f"{name}{_labels(sample.labels, last=('quantile', str(quantile)))} {_number(value)}"


def _exemplar(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    at_s = exemplar.at_ms / 1000
    return f' # {{trace_id="{_escape(exemplar.trace_id)}"}} {_number(exemplar.value)} {at_s:.3f}'


def _labels(labels: Mapping[str, str], *, last: tuple[str, str] | None = None) -> str:
    """In alphabetical order, as Triton writes them, but the bound of a bucket and a quantile last: scripts look for whole
    lines."""
    pairs = sorted(labels.items())
    if last is not None:
        pairs.append(last)
    if not pairs:
        return ""
    return "{" + ",".join(f'{key}="{_escape(value)}"' for key, value in pairs) + "}"


def _escape(value: str) -> str:
    return _escape_help(value).replace('"', '\\"')


def _escape_help(value: str) -> str:
    """Texts may come from models, and must not start a new line. Besides what the formats require, carriage returns and half
    characters are escaped, which would start a line, or not be UTF-8."""
    value = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", " ")
    return value.encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < _PLAIN_MAX else repr(value)


def _canonical(bound: float) -> str:
    """A bound as OpenMetrics wants it: a whole number has a point, too."""
    return repr(float(bound)) if math.isfinite(bound) else _number(bound)
