"""Metrics that models make themselves: families, their series, and who holds them.

A family exists while somebody holds it, and a series while a holder of it does; holders of the same name, and of the same labels,
share one. Any thread; nothing here waits but for the lock.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import math
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from tpy.errors import AlreadyExists, InvalidArgument, Unavailable, Unsupported
from tpy.limits import (
    CUSTOM_METRIC_BUCKETS_MAX,
    CUSTOM_METRIC_FAMILIES_MAX,
    CUSTOM_METRIC_LABELS_MAX,
    CUSTOM_METRIC_TEXT_MAX,
    CUSTOM_METRICS_MAX,
    CUSTOM_METRICS_OF_FAMILY_MAX,
)
from tpy.messages import Histogram
from tpy.telemetry.exposition import MeasuredFamily, MetricKind, Sample

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z", re.ASCII)
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*\Z", re.ASCII)

Labels = tuple[tuple[str, str], ...]


class _Series:
    """The values under one set of labels. `counts` has one entry per bucket, and one for what is above all of them."""

    __slots__ = ("buckets", "counts", "holders", "total", "value")

    def __init__(self, buckets: Sequence[float]) -> None:
        self.holders = 0
        self.value = 0.0
        self.buckets = tuple(buckets)
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0


class _Family:
    __slots__ = ("help", "holders", "is_full", "kind", "name", "series")

    def __init__(self, name: str, text: str, kind: MetricKind) -> None:
        self.name = name
        self.help = text
        self.kind = kind
        self.holders = 0
        self.series: dict[Labels, _Series] = {}
        self.is_full = False
        """A series was refused, which the log says once."""


class CustomMetric:
    """A holder's series. Its methods raise Unsupported for what its kind does not do, with Triton's texts."""

    __slots__ = ("_lock", "_series", "kind")

    def __init__(self, kind: MetricKind, series: _Series, lock: threading.Lock) -> None:
        self.kind = kind
        self._series = series
        self._lock = lock

    def increment(self, value: float) -> None:
        """Add `value`; a counter takes no negative one (InvalidArgument)."""
        if self.kind is MetricKind.HISTOGRAM:
            raise self._unsupported("Increment")
        if self.kind is MetricKind.COUNTER and value < 0:
            raise InvalidArgument(
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
            )
        with self._lock:
            self._series.value += value

    def set(self, value: float) -> None:
        """A gauge's new value."""
        if self.kind is not MetricKind.GAUGE:
            raise self._unsupported("Set")
        with self._lock:
            self._series.value = value

    def observe(self, value: float) -> None:
        """One more observation of a histogram."""
        if self.kind is not MetricKind.HISTOGRAM:
            raise self._unsupported("Observe")
        series = self._series
        place = len(series.buckets) if math.isnan(value) else bisect.bisect_left(series.buckets, value)
        with self._lock:
            series.counts[place] += 1
            series.total += value

    def observe_all(self, values: Iterable[float]) -> None:
        """More observations of a histogram."""
        for value in values:
            self.observe(value)

    def value(self) -> float:
        """Of a counter or gauge."""
        if self.kind is MetricKind.HISTOGRAM:
            raise self._unsupported("Value")
        return self._series.value

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(f"TRITONSERVER_METRIC_KIND_{self.kind.name} does not support {what}")


class CustomFamily:
    """One holder's hold on a family. `close` it; its series end with it where nobody else holds them."""

    def __init__(self, registry: CustomMetrics, family: _Family) -> None:
        self._registry = registry
        self._family = family
        self._metrics: dict[Labels, CustomMetric] = {}
        self._closed = False

    @property
    def kind(self) -> MetricKind:
        """Of all of its metrics."""
        return self._family.kind

    def metric(self, labels: Mapping[str, str], buckets: Sequence[float] = ()) -> CustomMetric:
        """The series under these labels; the same one for the same labels. `buckets` are the upper bounds of a new histogram.

        Raises InvalidArgument for labels or buckets that cannot be, Unavailable when there are too many metrics.
        """
        return self._registry.hold_series(self._family, self._metrics, labels, buckets)

    def close(self) -> None:
        """Let go. Idempotent."""
        if not self._closed:
            self._closed = True
            self._registry.let_go(self._family, self._metrics)


class CustomMetrics:
    """All of them. `reserved` are the names of the server's own families."""

    def __init__(self, reserved: Mapping[str, MetricKind] | None = None) -> None:
        self._reserved = dict(reserved or {})
        self._lock = threading.Lock()
        self._families: dict[str, _Family] = {}
        self._series_count = 0
        self._settlers: dict[object, Callable[[], None]] = {}

    def family(self, name: str, description: str, kind: MetricKind) -> CustomFamily:
        """Hold a family; one that is there keeps its description.

        Raises InvalidArgument for a bad name, AlreadyExists when the name is taken, Unavailable when there are too many.
        """
        if not _NAME.match(name):
            raise InvalidArgument("Invalid metric name")
        _require_short(name, description)
        if name in self._reserved:
            same = self._reserved[name] is kind
            raise AlreadyExists(f"metric family '{name}' is the server's own" if same else _OTHER_TYPE)
        with self._lock:
            family = self._families.get(name)
            if family is None:
                if len(self._families) >= CUSTOM_METRIC_FAMILIES_MAX:
                    raise Unavailable(f"there are {CUSTOM_METRIC_FAMILIES_MAX} metric families of models already")
                self._require_no_overlap(name, kind)
                family = self._families[name] = _Family(name, description, kind)
            elif family.kind is not kind:
                raise AlreadyExists(_OTHER_TYPE)
            family.holders += 1
        return CustomFamily(self, family)

    def unreserve(self, names: Sequence[str]) -> None:
        """The server has no families of these names: somebody else may."""
        for name in names:
            self._reserved.pop(name, None)

    def before_reading(self, settle: Callable[[], None]) -> Callable[[], None]:
        """Have `settle` called before values are read for somebody else: it applies what is on its way from a model, without
        waiting for more. Returns what undoes this."""
        key = object()
        with self._lock:
            self._settlers[key] = settle

        def undo() -> None:
            with self._lock:
                self._settlers.pop(key, None)

        return undo

    def families(self) -> tuple[MeasuredFamily, ...]:
        """The values now, by name and labels; families without series are left out."""
        with self._lock:
            settlers = list(self._settlers.values())
        for settle in settlers:
            settle()
        with self._lock:
            return tuple(
                MeasuredFamily(
                    name=family.name,
                    kind=family.kind,
                    help=family.help,
                    samples=tuple(_samples(family)),
                )
                for _, family in sorted(self._families.items())
                if family.series
            )

    def hold_series(
        self, family: _Family, held: dict[Labels, CustomMetric], labels: Mapping[str, str], buckets: Sequence[float]
    ) -> CustomMetric:
        """For CustomFamily."""
        _require_labels(labels, histogram=family.kind is MetricKind.HISTOGRAM)
        _require_buckets(buckets, histogram=family.kind is MetricKind.HISTOGRAM)
        key = tuple(sorted(labels.items()))
        with self._lock:
            known = held.get(key)
            if known is not None:
                return known
            series = family.series.get(key)
            if series is None:
                self._require_room(family)
                series = family.series[key] = _Series(buckets)
                self._series_count += 1
            series.holders += 1
            metric = held[key] = CustomMetric(family.kind, series, self._lock)
            return metric

    def let_go(self, family: _Family, held: Collection[Labels]) -> None:
        """For CustomFamily."""
        with self._lock:
            for key in held:
                series = family.series[key]
                series.holders -= 1
                if not series.holders:
                    del family.series[key]
                    self._series_count -= 1
            family.holders -= 1
            if not family.holders:
                del self._families[family.name]

    def _require_room(self, family: _Family) -> None:
        if len(family.series) >= CUSTOM_METRICS_OF_FAMILY_MAX:
            problem = f"metric family '{family.name}' has {CUSTOM_METRICS_OF_FAMILY_MAX} metrics already"
        elif self._series_count >= CUSTOM_METRICS_MAX:
            problem = f"there are {CUSTOM_METRICS_MAX} metrics of models already"
        else:
            return
        if not family.is_full:
            family.is_full = True
            _log.warning("%s, further ones are refused: do its labels come from requests?", problem)
        raise Unavailable(problem)

    def _require_no_overlap(self, name: str, kind: MetricKind) -> None:
        """The lines of a histogram or summary have their own names, which must not be another family's."""
        families = [*((family.name, family.kind) for family in self._families.values()), *self._reserved.items()]
        taken = {line for family in families for line in _line_names(*family)}
        if not taken.isdisjoint(_line_names(name, kind)):
            raise AlreadyExists(f"metric family '{name}' would have lines with the same name as another one's")


_OTHER_TYPE = "Family name already exists with different type"


_SEVERAL_LINES = (MetricKind.HISTOGRAM, MetricKind.SUMMARY)


def _line_names(name: str, kind: MetricKind) -> set[str]:
    return {name, f"{name}_count", f"{name}_sum", f"{name}_bucket"} if kind in _SEVERAL_LINES else {name}


def _samples(family: _Family) -> Iterator[Sample]:
    for labels, series in sorted(family.series.items()):
        if family.kind is MetricKind.HISTOGRAM:
            yield Sample(dict(labels), series.total, Histogram(series.buckets, tuple(series.counts)))
        else:
            yield Sample(dict(labels), series.value)


def _require_short(*texts: str) -> None:
    for text in texts:
        if len(text) > CUSTOM_METRIC_TEXT_MAX:
            raise InvalidArgument(
                f"the name, description or label of a metric has {len(text)} characters, more than {CUSTOM_METRIC_TEXT_MAX}"
            )


def _require_labels(labels: Mapping[str, str], *, histogram: bool) -> None:
    if len(labels) > CUSTOM_METRIC_LABELS_MAX:
        raise InvalidArgument(f"a metric has {len(labels)} labels, more than {CUSTOM_METRIC_LABELS_MAX}")
    for name, value in labels.items():
        if not _LABEL.match(name) or (histogram and name == "le"):
            raise InvalidArgument("Invalid label name")
        _require_short(name, value)


def _require_buckets(buckets: Sequence[float], *, histogram: bool) -> None:
    if not histogram:
        if buckets:
            raise InvalidArgument("Unexpected buckets found.")
        return
    if len(buckets) > CUSTOM_METRIC_BUCKETS_MAX:
        raise InvalidArgument(f"a histogram has {len(buckets)} buckets, more than {CUSTOM_METRIC_BUCKETS_MAX}")
    if any(not math.isfinite(bound) for bound in buckets) or any(a >= b for a, b in itertools.pairwise(buckets)):
        raise InvalidArgument("Bucket Boundaries must be strictly sorted")
