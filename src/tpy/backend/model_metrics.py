"""Metrics that models make: what a backend may do with them. They are on the metrics port as long as they are held."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tpy.telemetry.exposition import MetricKind


class Metric(Protocol):
    """One series. Any thread. What a kind does not do raises Unsupported, a counter that is to go down InvalidArgument."""

    def increment(self, value: float) -> None:
        """Add to a counter or gauge."""
        ...

    def set(self, value: float) -> None:
        """Set a gauge."""
        ...

    def observe(self, value: float) -> None:
        """One more observation of a histogram."""
        ...

    def observe_all(self, values: Sequence[float]) -> None:
        """Several observations of a histogram, all finite: one message where the model runs in a process."""
        ...

    def value(self) -> float:
        """Of a counter or gauge, by all of its holders."""
        ...


class MetricFamily(Protocol):
    """A hold on a family, which all holders of its name share. Whoever has it closes it. Any thread."""

    @property
    def kind(self) -> MetricKind: ...

    def metric(self, labels: Mapping[str, str], buckets: Sequence[float] = ()) -> Metric:
        """The series under these labels, shared as the family is; held as long as the family. `buckets` for histograms only.

        Raises InvalidArgument (labels, buckets) or Unavailable (too many).
        """
        ...

    def close(self) -> None:
        """Let go: what nobody else holds is gone from the metrics. Idempotent."""
        ...


class ModelMetrics(Protocol):
    """The registry of all models' metrics. Any thread; never waits."""

    def family(self, name: str, description: str, kind: MetricKind) -> MetricFamily:
        """Raises InvalidArgument (name), AlreadyExists (another kind, the server's own) or Unavailable (too many)."""
        ...

    def before_reading(self, settle: Callable[[], None]) -> Callable[[], None]:
        """Have `settle` called, in any thread, before somebody reads; it applies what has come from a model, and waits for
        nothing. Returns what undoes this."""
        ...
