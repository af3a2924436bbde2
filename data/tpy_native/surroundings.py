"""Takes log lines and metrics of plug-ins; errors in both directions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tpy.errors import ERROR_OF_CODE, TRITON_ERROR_CODES, ErrorCode, TpyError, Unavailable

if TYPE_CHECKING:  # the processes of repository agents import this module, and should not import a backend's world with it
    from tpy.backend import ModelMetrics

Log = Callable[[str, str], None]

_logger = logging.getLogger(__name__)

_INTERNAL: Final = TRITON_ERROR_CODES.index(ErrorCode.INTERNAL)

_LEVELS: Final = ("info", "warning", "error", "verbose")
"""In the order of TRITONSERVER_LogLevel."""

_KINDS: Final = ("counter", "gauge", "histogram")
"""In the order of TRITONSERVER_MetricKind."""


def error_of(code: int, text: str) -> TpyError:
    """The error that a plug-in gave."""
    return ERROR_OF_CODE[TRITON_ERROR_CODES[code] if 0 <= code < len(TRITON_ERROR_CODES) else ErrorCode.UNKNOWN](text)


def code_of(error: BaseException) -> int:
    """The code of an exception, as plug-ins know it."""
    if isinstance(error, TpyError) and error.code in TRITON_ERROR_CODES:
        return TRITON_ERROR_CODES.index(error.code)
    return _INTERNAL


def log_without_model(level: str, text: str) -> None:
    """The log of a plug-in that belongs to no model."""
    _logger.log(
        {"warning": logging.WARNING, "error": logging.ERROR, "verbose": logging.DEBUG}.get(level, logging.INFO), "%s", text
    )


class Surroundings:
    """Takes log lines and metrics of plug-ins. The C interface does not say whose they are, so they are those of the model that
    the calling thread works for, else of the one that was loaded last."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._log: Log = log_without_model
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
            from tpy.telemetry.exposition import MetricKind

            return self._metrics.family(name, description, MetricKind(_KINDS[kind]))
        if operation == "metric":
            family, labels, buckets = values
            return family.metric(labels, buckets)
        target = values[0]
        if operation == "close":
            return target.close()
        return target.value() if operation == "value" else getattr(target, operation)(values[1])


surroundings: Final = Surroundings()
