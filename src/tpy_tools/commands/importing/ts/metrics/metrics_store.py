"""The metrics of one model: each becomes a family of the server's metrics, with its dimensions as labels."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .dimension import Dimension
from .metric_type_enum import MetricTypes

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of histograms, as in Prometheus' own libraries, which TorchServe uses."""

_METRICS_MAX = 1000
"""A handler that makes labels of what it is sent shall not fill the page."""

_KINDS = (MetricTypes.COUNTER, MetricTypes.GAUGE, MetricTypes.HISTOGRAM)
"""In the order of Triton's numbers."""

logger = logging.getLogger(__name__)


class Metric:
    """A metric whose labels are given with each value."""

    def __init__(self, store: MetricsStore, name: str, unit: str, dimension_names: Sequence[str], kind: MetricTypes) -> None:
        self.metric_name = name
        self.unit = unit
        self.dimension_names = list(dimension_names)
        self.metric_type = kind
        self._store = store

    def add_or_update(self, value: float, dimension_values: Sequence[object] = (), request_id: str = "") -> None:
        """Count, set or observe a value."""
        if len(dimension_values) != len(self.dimension_names):
            raise ValueError(f"metric {self.metric_name}: expected values of {self.dimension_names}, got {dimension_values}")
        labels = {name: str(each) for name, each in zip(self.dimension_names, dimension_values)}  # noqa: B905
        self._store.record(self.metric_name, self.metric_type, value, labels)


class MetricsStore:
    """The metrics of a model, as handlers call them. `new_family` makes a family of a name, a description and a kind's number."""

    def __init__(self, model_name: str, new_family: Callable[[str, str, int], Any]) -> None:
        self.model_name = model_name
        self.request_ids: dict[int, str] | None = None
        self.store: list[Any] = []
        self._new_family = new_family
        self._families: dict[str, tuple[MetricTypes, Any]] = {}
        self._metrics: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}

    def add_counter(self, name: str, value: float, idx: int | None = None, dimensions: Sequence[Dimension] | None = None) -> None:
        """Add to a counter."""
        self._add(name, MetricTypes.COUNTER, value, dimensions)

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """A time in ms or s."""
        if unit not in ("ms", "s"):
            raise ValueError(f"metric {name}: a time is in ms or s, not in '{unit}'")
        self._add(name, metric_type, value, dimensions)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """A size in B, kB, MB or GB."""
        if unit not in ("B", "kB", "MB", "GB"):
            raise ValueError(f"metric {name}: a size is in B, kB, MB or GB, not in '{unit}'")
        self._add(name, metric_type, value, dimensions)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """A percentage."""
        self._add(name, metric_type, value, dimensions)

    def add_error(self, name: str, value: float | str, dimensions: Sequence[Dimension] | None = None) -> None:
        """Count errors; a text is one of them."""
        self._add(name, MetricTypes.COUNTER, 1 if isinstance(value, str) else value, dimensions, level="Error")

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str = "",
        idx: int | None = None,
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """A value of any kind."""
        self._add(name, metric_type, value, dimensions)

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str = "",
        dimension_names: Sequence[str] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> Metric:
        """A metric that is kept, for values with its labels."""
        return Metric(self, metric_name, unit, dimension_names, metric_type)

    def set_request_ids(self, request_ids: Mapping[int, str]) -> None:
        """The requests that are handled."""
        self.request_ids = dict(request_ids)

    def _add(
        self, name: str, kind: MetricTypes, value: float, dimensions: Sequence[Dimension] | None, level: str = "Model"
    ) -> None:
        labels = {"ModelName": self.model_name, "Level": level}
        labels.update((each.name, str(each.value)) for each in dimensions or ())
        self.record(name, kind, value, labels)

    def record(self, name: str, kind: MetricTypes, value: float, labels: Mapping[str, str]) -> None:
        """Count, set or observe a value. The first use of a name decides on its kind. Raises ValueError for a negative count.
        What the server refuses, as a name that another model uses for another kind, is logged once and left out."""
        if kind is MetricTypes.COUNTER and value < 0:
            raise ValueError(f"metric {name}: a counter cannot fall")
        key = (name, tuple(sorted(labels.items())))
        if key not in self._metrics:
            self._metrics[key] = self._made(name, kind, labels)
        metric = self._metrics[key]
        if metric is None:
            return
        kind = self._families[name][0]
        if kind is MetricTypes.COUNTER:
            metric.increment(value)
        elif kind is MetricTypes.GAUGE:
            metric.set(value)
        else:
            metric.observe(value)

    def _made(self, name: str, kind: MetricTypes, labels: Mapping[str, str]) -> Any:
        """The metric with these labels; None where there is to be none."""
        if len(self._metrics) >= _METRICS_MAX:
            return None
        try:
            if name not in self._families:
                shown = re.sub("[^A-Za-z0-9_:]", "_", name)
                number = _KINDS.index(kind)
                self._families[name] = kind, self._new_family(shown, f"{name} of TorchServe handlers", number)
            kind, family = self._families[name]
            texts = {re.sub("[^A-Za-z0-9_]", "_", key): text for key, text in labels.items()}
            return family.Metric(texts, list(_BUCKETS)) if kind is MetricTypes.HISTOGRAM else family.Metric(texts)
        except Exception:
            logger.warning("metric %s is left out", name, exc_info=True)
            return None
