"""Metrics of the program, on the metrics page of every server in it."""

from __future__ import annotations

import weakref

from tpy.telemetry.custom_metrics import CustomMetric, CustomMetrics
from tpy.telemetry.exposition import MetricKind as OwnKind
from tpy.telemetry.host import SERVER_FAMILIES
from tpy.tritonserver.enums import MetricKind
from tpy.tritonserver.errors import as_triton

PROGRAM_METRICS = CustomMetrics(SERVER_FAMILIES)
"""The metrics of this process, as in Triton."""


class MetricFamily:
    """Metrics of one name. It is there as long as this object is, or a metric of it."""

    def __init__(self, kind: MetricKind, name: str, description: str) -> None:
        with as_triton():
            self._family = PROGRAM_METRICS.family(name, description, OwnKind[kind.name])
        self._kind = kind
        weakref.finalize(self, self._family.close).atexit = False


class Metric:
    """One metric of a family, told from the others by its labels."""

    def __init__(self, family: MetricFamily, labels: dict[str, str] | None = None) -> None:
        self._family = family
        with as_triton():
            self._metric: CustomMetric = family._family.metric(labels or {})

    @property
    def kind(self) -> MetricKind:
        """Of its family."""
        return self._family._kind

    @property
    def value(self) -> float:
        """The value now."""
        with as_triton():
            return self._metric.value()

    def increment(self, value: float) -> None:
        """Add to it."""
        with as_triton():
            self._metric.increment(value)

    def set_value(self, value: float) -> None:
        """The new value of a gauge."""
        with as_triton():
            self._metric.set(value)
