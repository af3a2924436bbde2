"""MetricTable: the metric families and series that one instance holds, by number. Any thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tpy.backend import Metric, MetricFamily, ModelMetrics
from tpy.errors import InvalidArgument, TpyError
from tpy.telemetry.exposition import MetricKind
from tpy_data.backends.python.worker.pb_utils.failures import TritonModelException

_KINDS = (MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM)
"""In the order of TRITONSERVER_MetricKind."""


class MetricTable:
    """Everything that it holds is let go by `close`. Methods raise InvalidArgument with the text that model code reads."""

    def __init__(self, instance: str, metrics: ModelMetrics) -> None:
        self._instance = instance
        self._registry = metrics
        self._lock = threading.Lock()
        self._next = 0
        self._families: dict[int, MetricFamily] = {}
        self._metrics: dict[int, Metric] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        """By family and identity of the metric: the same labels are the same metric, and get the same number."""

    def family(self, name: str, description: str, kind: int) -> int:
        """Hold a family."""
        if not 0 <= kind < len(_KINDS):
            raise InvalidArgument(self.refusal("Unknown metric kind"))
        try:
            family = self._registry.family(name, description, _KINDS[kind])
        except TpyError as error:
            raise InvalidArgument(self.refusal(error.message)) from None
        with self._lock:
            self._next += 1
            self._families[self._next] = family
            return self._next

    def metric(self, family: int, labels: dict[str, str], buckets: list[float]) -> int:
        """Hold a series."""
        known = self._families.get(family)
        if known is None:
            raise InvalidArgument(self.refusal(f"metric family {family} is not known"))
        try:
            metric = known.metric(labels, buckets)
        except TpyError as error:
            raise InvalidArgument(self.refusal(error.message)) from None
        with self._lock:
            key = (family, id(metric))
            if key not in self._numbers:
                self._next += 1
                self._numbers[key] = self._next
                self._metrics[self._next] = metric
            return self._numbers[key]

    def change(self, metric: int, operation: str, value: float) -> None:
        """Apply a change. Ignored for unknown metrics: a change may come after its family was closed."""
        known = self._metrics.get(metric)
        if known is None:
            return
        try:
            match operation:
                case "increment":
                    known.increment(value)
                case "set":
                    known.set(value)
                case "observe":
                    known.observe(value)
                case _:
                    raise InvalidArgument(f"unknown metric operation '{operation}'")
        except TpyError as error:
            raise InvalidArgument(self.refusal(error.message)) from None

    def value(self, metric: int) -> float:
        """The value now."""
        known = self._metrics.get(metric)
        if known is None:
            raise InvalidArgument(self.refusal(f"metric {metric} is not known"))
        try:
            return known.value()
        except TpyError as error:
            raise InvalidArgument(self.refusal(error.message)) from None

    def close_family(self, family: int) -> None:
        """Let go of a family and of the series held with it."""
        with self._lock:
            known = self._families.pop(family, None)
            for key in [key for key in self._numbers if key[0] == family]:
                del self._metrics[self._numbers.pop(key)]
        if known is not None:
            known.close()

    def close(self) -> None:
        """Let go of everything."""
        for family in list(self._families):
            self.close_family(family)

    def refusal(self, text: str) -> str:
        """`text` as the instance's model reads it."""
        return f"Failed to process the request for model '{self._instance}', message: {text}"


class DirectMetrics:
    """A `worker.ports.MetricPort` for a model in this process: the table's methods, with errors as model code knows them."""

    def __init__(self, table: MetricTable) -> None:
        self._table = table

    def family(self, name: str, description: str, kind: int) -> int:
        with _as_models_know_it():
            return self._table.family(name, description, kind)

    def metric(self, family: int, labels: dict[str, str], buckets: list[float]) -> int:
        with _as_models_know_it():
            return self._table.metric(family, labels, buckets)

    def change(self, metric: int, operation: str, value: float) -> None:
        with _as_models_know_it():
            self._table.change(metric, operation, value)

    def observe(self, metric: int, values: list[float]) -> None:
        with _as_models_know_it():
            for value in values:
                self._table.change(metric, "observe", value)

    def value(self, metric: int) -> float:
        with _as_models_know_it():
            return self._table.value(metric)

    def close_family(self, family: int) -> None:
        self._table.close_family(family)

    def refusal(self, text: str) -> str:
        return self._table.refusal(text)


@contextlib.contextmanager
def _as_models_know_it() -> Iterator[None]:
    try:
        yield
    except InvalidArgument as error:
        raise TritonModelException(error.message) from None
