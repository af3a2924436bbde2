"""Logging: standard `logging`, Triton's line formats, and settings that change while the server runs.

A record's message is constant text. What varies goes into `extra={"context": {...}}` and is printed as `key=value` behind it, or,
where the sentence is Triton's and scripts look for it, into a mapping that the message refers to by name, as in
`_log.info("loading: %(model)s:%(version)s", {...})`. In `json` both are the members of `context`. Verbose records are level
DEBUG with `extra={"verbose": n}` (n >= 1, 1 when absent) and show when `log_verbose_level` >= n. Messages are escaped, so no
request or model name can forge a line; a record with `extra={"table": text}` has the lines of `text`, which tpy.assembly.tables
has made safe, below its first line.

Source: Triton's logging extension; line formats from triton_logging. `json` and `plain` are ours.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import re
import sys
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import TextIO

from tpy.errors import InvalidArgument, Unavailable, Unsupported
from tpy.limits import LOG_TAIL_LINES_MAX
from tpy.messages import LogSettings
from tpy.messages.server import LOG_FORMATS
from tpy.telemetry.log_tail import KeepingFormatter, LogTail

_OURS = ("tpy", "tpy_control", "tpy_data")
_LIBRARIES = ("hypercorn", "quart")
"""Their warnings concern an operator, the rest does not."""

_LETTERS = {logging.DEBUG: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}


def escape(text: str) -> str:
    """`text` with control characters and quotes escaped as in JSON, so that it stays one line and moves no terminal."""
    return one_line(encode_basestring(text))


_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that JSON leaves alone and that are not plain text: more control characters and line ends, marks that make a
terminal show what follows in another order, and what UTF-8 has no form for."""


def one_line(document: str) -> str:
    """JSON without characters that would end a line or move a terminal: they are escaped, which means the same."""
    if document.isascii() and "\x7f" not in document:
        return document
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


_AMBIGUOUS = re.compile(r'[\s="]')


def _quoted(value: str) -> str:
    """A value of a key: in quotes where it could be taken for several, since ids and names are the caller's."""
    if not _AMBIGUOUS.search(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    context = getattr(record, "context", None)
    if context:
        text += " " + " ".join(f"{key}={_quoted(str(value))}" for key, value in context.items())
    if record.exc_info:
        text += "\n" + logging.Formatter().formatException(record.exc_info)
    return text


class TritonFormatter(logging.Formatter):
    """`default` and `ISO8601`: Triton's prefixes, the message in quotes, UTC."""

    def __init__(self, *, iso8601: bool) -> None:
        super().__init__()
        self._iso8601 = iso8601

    def format(self, record: logging.LogRecord) -> str:
        """One line without a line break at its end."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        letter = _LETTERS.get(record.levelno, "I")
        place = f"{record.process} {record.filename}:{record.lineno}]"
        table = getattr(record, "table", None)
        text = escape(_message(record)) if table is None else f"\n{table}\n"
        if self._iso8601:
            return f"{when:%Y-%m-%dT%H:%M:%SZ} {letter} {place} {text}"
        return f"{letter}{when:%m%d %H:%M:%S.%f} {place} {text}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the record's context as members of `context`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line without a line break at its end."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        entry: dict[str, object] = {
            "time": when.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        context = getattr(record, "context", None) or (record.args if isinstance(record.args, Mapping) else None)
        if context:
            entry["context"] = {key: str(value) for key, value in context.items()}
        table = getattr(record, "table", None)
        if table is not None:
            entry["table"] = table.splitlines()
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return one_line(json.dumps(entry, ensure_ascii=False))


_PLAIN_LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "WARNING", logging.ERROR: "ERROR"}
_CONTINUED = "\n        | "


class PlainFormatter(logging.Formatter):
    """`plain`: for people at a terminal. Local time, level and message; what is below the first line of a message, such as a
    traceback, is indented behind a bar, so that no request or model can forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line or several, without a line break at the end."""
        when = datetime.datetime.fromtimestamp(record.created)
        level = _PLAIN_LEVELS.get(record.levelno, record.levelname)
        table = getattr(record, "table", None)
        text = _CONTINUED.join(escape(line)[1:-1].replace('\\"', '"') for line in _message(record).splitlines())
        return f"{when:%H:%M:%S} {level:<7} {text}" + ("" if table is None else f"\n{table}")


class _Filter(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self.settings = LogSettings()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return self.settings.log_error
        if record.levelno >= logging.WARNING:
            return self.settings.log_warning
        if record.levelno >= logging.INFO:
            return self.settings.log_info
        verbose: int = getattr(record, "verbose", 1)
        return verbose <= self.settings.log_verbose_level


class _FileHandler(logging.FileHandler):
    """A log file. When it cannot be written (a full disk, say) the server goes on, with one line on standard error."""

    _has_complained = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Tell it, instead of a traceback for each record."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)  # a bug
        elif not self._has_complained:
            self._has_complained = True
            with contextlib.suppress(OSError, ValueError):
                # In one piece: another thread may be writing there.
                sys.stderr.write(f"tpy: the log file '{self.baseFilename}' cannot be written: {error}\n")
                sys.stderr.flush()

    def close(self) -> None:
        """Close the file; what could not be written is lost."""
        with contextlib.suppress(OSError):
            super().close()


class _StreamHandler(logging.StreamHandler[TextIO]):
    """Standard error. When nobody reads it any more there is nobody to tell, and the server goes on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Lose the record."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)  # a bug


def open_handler(file: str, stream: TextIO) -> logging.Handler:
    """A handler that appends to `file`, or to `stream` for "". When that fails later on, the server goes on. Raises OSError for a
    file that cannot be opened."""
    return _FileHandler(file, encoding="utf-8", errors="backslashreplace") if file else _StreamHandler(stream)


class LogController:
    """Owns the handler of our loggers. One per process; `install` and `remove` are its lifetime. `tail` has the newest lines, as
    many as `kept_lines_max`."""

    def __init__(self, settings: LogSettings, *, stream: TextIO | None = None, kept_lines_max: int = LOG_TAIL_LINES_MAX) -> None:
        self.tail = LogTail(lines_max=kept_lines_max)
        self._filter = _Filter()
        self._settings = settings
        self._stream = stream
        self._handler: logging.Handler = self._open(settings)
        self.apply(settings)

    @property
    def settings(self) -> LogSettings:
        """The settings in force."""
        return self._settings

    @property
    def reaches_terminal(self) -> bool:
        """True if informational messages are shown on standard error."""
        return self._settings.log_info and not self._settings.log_file

    def install(self) -> None:
        """Attach to the loggers: ours, and the warnings of the HTTP libraries."""
        for name in (*_OURS, *_LIBRARIES):
            logger = logging.getLogger(name)
            logger.addHandler(self._handler)
            logger.propagate = False
        self._set_levels()

    def reopen(self) -> None:
        """Open the log file again, by its name: whoever rotates logs has renamed the old one. Raises OSError when it cannot be;
        the old one stays in use then."""
        if self._settings.log_file:
            former, self._handler = self._handler, self._open(self._settings)
            self._handler.setFormatter(KeepingFormatter(_formatter(self._settings.log_format), self.tail))
            for name in (*_OURS, *_LIBRARIES):
                logger = logging.getLogger(name)
                if former in logger.handlers:
                    logger.addHandler(self._handler)
                    logger.removeHandler(former)
            former.close()

    def remove(self) -> None:
        """Detach and close."""
        for name in (*_OURS, *_LIBRARIES):
            logger = logging.getLogger(name)
            logger.removeHandler(self._handler)
            logger.propagate = True
            logger.setLevel(logging.NOTSET)
        self._handler.close()

    def apply(self, settings: LogSettings) -> None:
        """Put settings in force that were checked before."""
        self._settings = settings
        self._filter.settings = settings
        self._handler.setFormatter(KeepingFormatter(_formatter(settings.log_format), self.tail))
        self._set_levels()

    def update(self, settings: LogSettings) -> None:
        """Change settings on behalf of a client. Raises with Triton's texts."""
        if settings.log_file != self._settings.log_file:
            raise Unsupported("log file location can not be updated through network protocol")
        if settings.log_format not in LOG_FORMATS:
            raise Unavailable(f"invalid argument for --log_format, got: {settings.log_format}")
        if settings.log_verbose_level < 0:
            raise InvalidArgument(f"log_verbose_level must be >= 0, got: {settings.log_verbose_level}")
        self.apply(settings)

    def _set_levels(self) -> None:
        """On the loggers too, so that what is not shown is not even made: a line for each request, say."""
        ours = logging.DEBUG if self._settings.log_verbose_level > 0 else logging.INFO
        for name in (*_OURS, *_LIBRARIES):
            logging.getLogger(name).setLevel(ours if name in _OURS else logging.WARNING)

    def _open(self, settings: LogSettings) -> logging.Handler:
        handler = open_handler(settings.log_file, self._stream or sys.stderr)
        handler.addFilter(self._filter)
        return handler


def _formatter(log_format: str) -> logging.Formatter:
    match log_format:
        case "json":
            return JsonFormatter()
        case "plain":
            return PlainFormatter()
        case _:
            return TritonFormatter(iso8601=log_format == "ISO8601")
