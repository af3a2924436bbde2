"""pb_utils.Logger: writes to the server's log for model code."""

from __future__ import annotations

import enum
import sys

from . import context
from .arguments import as_text


class _LogLevel(enum.IntEnum):
    """Severities, in Triton's numbers."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_WORD_OF_LEVEL = {
    _LogLevel.INFO: "info",
    _LogLevel.WARNING: "warning",
    _LogLevel.ERROR: "error",
    _LogLevel.VERBOSE: "verbose",
}


class Logger:
    """Static functions only. Outside a served model (a unit test) lines go to stderr."""

    LogLevel = _LogLevel
    INFO = _LogLevel.INFO
    WARNING = _LogLevel.WARNING
    ERROR = _LogLevel.ERROR
    VERBOSE = _LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: _LogLevel = _LogLevel.INFO) -> None:
        """Log at a level."""
        text = as_text(message, "replace")
        if text is None or not isinstance(level, _LogLevel):
            raise TypeError(
                f"log(message: str, level: Logger.LogLevel): incompatible arguments. Invoked with: {message!r}, {level!r}"
            )
        message = text
        word = _WORD_OF_LEVEL[level]
        known = context.current()
        if known is None:
            sys.stderr.write(f"{word}: {message}\n")
        else:
            known.log(word, message)

    @staticmethod
    def log_info(message: str) -> None:
        """Log at INFO."""
        Logger.log(message, _LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log at WARNING."""
        Logger.log(message, _LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        """Log at ERROR."""
        Logger.log(message, _LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log at VERBOSE."""
        Logger.log(message, _LogLevel.VERBOSE)
