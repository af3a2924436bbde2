"""pb_utils.MetricFamily. Values are the server's: instances and models share what has the same name and labels."""

from __future__ import annotations

import enum
import math
from typing import Any

from . import context
from .arguments import as_text
from .context import MetricPort
from .failures import TritonModelException

_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be deleted "
    "AFTER its corresponding 'Metric' objects have been deleted."
)
_OUTSIDE = "metrics are known in a served model only; an in-process model must make its families in its instance's own thread"


class MetricKind(enum.IntEnum):
    """TRITONSERVER_MetricKind."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class Metric:
    """One series. From MetricFamily.Metric; usable as long as its family is there."""

    __slots__ = ("_family", "_number")

    def __init__(self, family: _Open, number: int) -> None:
        self._family = family
        self._number = number

    def increment(self, value: float) -> None:
        """Add to a counter (not a negative value) or gauge."""
        kind = self._family.kind
        refused = ""
        if kind is MetricKind.HISTOGRAM:
            refused = _not_supported(kind, "Increment")
        elif kind is MetricKind.COUNTER and _number("increment", value) < 0:
            refused = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
        self._change("increment", value, refused)

    def set(self, value: float) -> None:
        """Set a gauge."""
        kind = self._family.kind
        self._change("set", value, "" if kind is MetricKind.GAUGE else _not_supported(kind, "Set"))

    def observe(self, value: float) -> None:
        """Add an observation to a histogram."""
        kind = self._family.kind
        self._change("observe", value, "" if kind is MetricKind.HISTOGRAM else _not_supported(kind, "Observe"))

    def value(self) -> float:
        """The value of a counter or gauge now, with the changes of all instances."""
        try:
            self._family.require_open()
            if self._family.kind is MetricKind.HISTOGRAM:
                raise TritonModelException(self._family.port.refusal(_not_supported(MetricKind.HISTOGRAM, "Value")))
            return self._family.port.value(self._number)
        except TritonModelException as error:
            raise TritonModelException(f"Failed to get metric value: {error}") from None

    def _change(self, operation: str, value: float, refused: str) -> None:
        number = _number(operation, value)
        try:
            self._family.require_open()
            if refused:
                raise TritonModelException(self._family.port.refusal(refused))
            self._family.port.change(self._number, operation, number)
        except TritonModelException as error:
            what = {"increment": "increment metric value", "set": "set metric value", "observe": "observe metric value"}
            raise TritonModelException(f"Failed to {what[operation]}: {error}") from None


class _Open:
    """A family that was made, as its metrics know it."""

    __slots__ = ("kind", "number", "open", "port")

    def __init__(self, port: MetricPort, kind: MetricKind, number: int) -> None:
        self.port = port
        self.kind = kind
        self.number = number
        self.open = True

    def require_open(self) -> None:
        if not self.open:
            raise TritonModelException(_DELETED)


class MetricFamily:
    """Metrics of one name and kind. They are on the metrics port until this object is gone, everywhere."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    __slots__ = ("_open",)

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self._open: _Open | None = None
        name_text, description_text = as_text(name), as_text(description, "replace")
        if name_text is None or description_text is None or not isinstance(kind, MetricKind):
            raise TypeError(
                "MetricFamily(name: str, description: str, kind: MetricKind): incompatible constructor arguments. Invoked with: "
                f"{name!r}, {description!r}, {kind!r}"
            )
        known = context.current()
        if known is None or known.metrics is None:
            raise TritonModelException(f"Error when creating MetricFamily: {_OUTSIDE}")
        try:
            number = known.metrics.family(name_text, description_text, int(kind))
        except TritonModelException as error:
            raise TritonModelException(f"Error when creating MetricFamily: {error}") from None
        self._open = _Open(known.metrics, kind, number)

    def Metric(  # noqa: N802  # Triton's name
        self, labels: dict[str, str] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """The series under these labels; `buckets` (ascending upper bounds) for histograms, and only for them."""
        family = self._open
        if family is None:
            raise TritonModelException(_DELETED)
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if buckets is not None and family.kind is not MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        if buckets is None and family.kind is MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        texts: dict[str, str] = {}
        for key, value in (labels or {}).items():
            key_text, value_text = as_text(key), as_text(value)
            if key_text is None or value_text is None:
                raise TritonModelException(f"Failed to create metric. Labels must be strings, got {key!r}: {value!r}.")
            texts[key_text] = value_text
        bounds = [_number("Metric", bound) for bound in buckets or ()]
        if not all(math.isfinite(bound) for bound in bounds):
            raise TritonModelException("Failed to create metric. Buckets must be finite numbers.")
        try:
            number = family.port.metric(family.number, texts, bounds)
        except TritonModelException as error:
            raise TritonModelException(f"Error when creating Metric: {error}") from None
        return Metric(family, number)

    def __del__(self) -> None:
        family = getattr(self, "_open", None)  # not there when the arguments were wrong
        if family is not None:
            family.open = False
            family.port.close_family(family.number)


def _not_supported(kind: MetricKind, what: str) -> str:
    return f"TRITONSERVER_METRIC_KIND_{kind.name} does not support {what}"


def _number(what: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{what}(): incompatible function arguments: expected a number, got {value!r}") from None
