"""What the C library calls: how values of the engine are made, where log lines and metrics go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tpy.backend import AnswerLater, ExecutionResult, ModelMetrics, ResponseSender
from tpy.errors import ERROR_OF_CODE, ErrorCode, Internal, TpyError, Unavailable
from tpy.messages import DataType, Tensor
from tpy.messages.datatypes import BY_NUMBER
from tpy.telemetry.metrics import MetricKind
from tpy_data.backends.python.protocol.late_answer import LateAnswer

Log = Callable[[str, str], None]

_logger = logging.getLogger(__name__)
_UINT16: Final = np.dtype(np.uint16)
_CODES: Final = (
    ErrorCode.UNKNOWN,
    ErrorCode.INTERNAL,
    ErrorCode.NOT_FOUND,
    ErrorCode.INVALID_ARG,
    ErrorCode.UNAVAILABLE,
    ErrorCode.UNSUPPORTED,
    ErrorCode.ALREADY_EXISTS,
    ErrorCode.CANCELLED,
)
"""In the order of TRITONSERVER_Error_Code."""

_LEVELS: Final = ("info", "warning", "error", "verbose")
"""In the order of TRITONSERVER_LogLevel."""

_KINDS: Final = (MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM)
"""In the order of TRITONSERVER_MetricKind."""


def _log_without_model(level: str, text: str) -> None:
    _logger.log({"warning": logging.WARNING, "error": logging.ERROR, "verbose": logging.DEBUG}.get(level, logging.INFO), "%s", text)


class Surroundings:
    """Where log lines and metrics of a plug-in go: its model's. The C interface does not say whose they are, so they are those of
    the model that the calling thread works for, else of the one that was loaded last."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._log: Log = _log_without_model
        self._metrics: ModelMetrics | None = None

    def enter(self, log: Log, metrics: ModelMetrics | None) -> None:
        """The calling thread works for this model from now on."""
        self._of_thread.log = log
        self._log = log
        if metrics is not None:
            self._metrics = metrics

    def log(self, level: int, file: str, line: int, text: str) -> None:
        """TRITONSERVER_LogMessage."""
        log: Log = getattr(self._of_thread, "log", self._log)
        log(_LEVELS[level] if 0 <= level < len(_LEVELS) else "info", text)

    def metric(self, operation: str, *values: Any) -> Any:
        """TRITONSERVER_MetricFamily*, TRITONSERVER_Metric*. Raises TpyError."""
        if operation == "family":
            kind, name, description = values
            if self._metrics is None:
                raise Unavailable("metrics can be made once a model is there")
            return self._metrics.family(name, description, _KINDS[kind])
        if operation == "metric":
            family, labels, buckets = values
            return family.metric(labels, buckets)
        target = values[0]
        if operation == "close":
            return target.close()
        return target.value() if operation == "value" else getattr(target, operation)(values[1])


surroundings: Final = Surroundings()


def error_of(code: int, text: str) -> TpyError:
    """The error that a plug-in gave."""
    return ERROR_OF_CODE[_CODES[code] if 0 <= code < len(_CODES) else ErrorCode.UNKNOWN](text)


def callables() -> tuple[object, ...]:
    """In the order of `tpy_start`."""
    numbers = range(max(BY_NUMBER) + 1)
    return (
        ExecutionResult,
        _failure,
        Tensor,
        np.ndarray,
        _bytes_array,
        [BY_NUMBER[number] for number in numbers],
        [BY_NUMBER[number].numpy for number in numbers],
        _prepare,
        _send,
        _later,
        ExecutionResult(),
        ExecutionResult(reschedule=True),
        surroundings.log,
        surroundings.metric,
    )


def _failure(code: int, text: str) -> ExecutionResult:
    return ExecutionResult(error=error_of(code, text))


def _bytes_array(shape: tuple[int, ...], elements: Sequence[bytes]) -> np.ndarray[Any, Any]:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def _prepare(tensor: Tensor) -> tuple[object, tuple[int, ...]]:
    """A buffer of the elements of an array that has none itself, and its shape. Raises Internal for elements that are no bytes."""
    array = tensor.array
    if tensor.datatype is DataType.BYTES:
        parts = []
        for element in array.ravel():
            data = element if isinstance(element, bytes) else str(element).encode()
            parts += (len(data).to_bytes(4, "little"), data)
        return b"".join(parts), array.shape
    if not isinstance(array, np.ndarray):
        raise Internal(f"input '{tensor.name}' is not in host memory")
    if tensor.datatype is DataType.BF16:
        array = np.ascontiguousarray(array).view(_UINT16)
    return np.ascontiguousarray(array), tensor.array.shape


def _send(sender: ResponseSender | LateAnswer, result: ExecutionResult | None, final: bool) -> None:
    sender.send(result, final=final, wait=True)


def _later() -> tuple[LateAnswer, AnswerLater]:
    late = LateAnswer()
    return late, AnswerLater(begin=late.begin)
