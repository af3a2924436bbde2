"""ModelMetrics of a hosted backend: the server's, through the worker's connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from tpy.errors import InvalidArgument, Unsupported
from tpy.telemetry.exposition import MetricKind

from ..pb_utils.context import MetricPort
from ..pb_utils.failures import TritonModelException

_NUMBERS = {MetricKind.COUNTER: 0, MetricKind.GAUGE: 1, MetricKind.HISTOGRAM: 2}
"""TRITONSERVER_MetricKind."""


class HostedMetrics:
    """A `ModelMetrics`. Whatever the server refuses is an InvalidArgument here."""

    def __init__(self, port: MetricPort) -> None:
        self._port = port

    def family(self, name: str, description: str, kind: MetricKind) -> HostedFamily:
        """As `ModelMetrics.family`."""
        with _refusals():
            return HostedFamily(self._port, self._port.family(name, description, _NUMBERS[kind]), kind)

    def before_reading(self, settle: Callable[[], None]) -> Callable[[], None]:
        """As `ModelMetrics.before_reading`; nothing settles before somebody reads: a worker sends changes as they are made."""
        return lambda: None


class HostedFamily:
    """A `MetricFamily`."""

    def __init__(self, port: MetricPort, number: int, kind: MetricKind) -> None:
        self.kind = kind
        self._port = port
        self._number = number
        self._is_closed = False

    def metric(self, labels: Mapping[str, str], buckets: Sequence[float] = ()) -> HostedMetric:
        """As `MetricFamily.metric`."""
        with _refusals():
            return HostedMetric(self._port, self._port.metric(self._number, dict(labels), list(buckets)), self.kind)

    def close(self) -> None:
        """As `MetricFamily.close`."""
        if not self._is_closed:
            self._is_closed = True
            self._port.close_family(self._number)


class HostedMetric:
    """A `Metric`. Changes are sent and not waited for, so what its kind does not do is refused here."""

    def __init__(self, port: MetricPort, number: int, kind: MetricKind) -> None:
        self._port = port
        self._number = number
        self._kind = kind

    def increment(self, value: float) -> None:
        """As `Metric.increment`."""
        if self._kind is MetricKind.COUNTER and not value >= 0:
            raise InvalidArgument(f"a counter can be incremented by values that are not negative, got {value}")
        self._change("increment", value, MetricKind.COUNTER, MetricKind.GAUGE)

    def set(self, value: float) -> None:
        """As `Metric.set`."""
        self._change("set", value, MetricKind.GAUGE)

    def observe(self, value: float) -> None:
        """As `Metric.observe`."""
        self._change("observe", value, MetricKind.HISTOGRAM)

    def observe_all(self, values: Sequence[float]) -> None:
        """As `Metric.observe_all`: one message."""
        self._require("observe", MetricKind.HISTOGRAM)
        with _refusals():
            self._port.observe(self._number, list(values))

    def value(self) -> float:
        """As `Metric.value`."""
        self._require("value", MetricKind.COUNTER, MetricKind.GAUGE)
        with _refusals():
            return self._port.value(self._number)

    def _change(self, operation: str, value: float, *kinds: MetricKind) -> None:
        self._require(operation, *kinds)
        with _refusals():
            self._port.change(self._number, operation, value)

    def _require(self, operation: str, *kinds: MetricKind) -> None:
        if self._kind not in kinds:
            raise Unsupported(f"a {self._kind.value} does not support '{operation}'")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except TritonModelException as error:
        raise InvalidArgument(str(error)) from None
