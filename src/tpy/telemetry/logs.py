"""Logging: standard `logging`, Triton's line formats, and settings that change while the server runs.

A record's message is constant text. What varies goes into `extra={"context": {...}}` and is printed as `key=value` behind it, or,
where the sentence is Triton's and scripts look for it, into a mapping that the message refers to by name, as in
`_log.info("loading: %(model)s:%(version)s", {...})`. In `json` both are the members of `context`. Verbose records are level
DEBUG with `extra={"verbose": n}` (n >= 1, 1 when absent) and show when `log_verbose_level` >= n. Messages are escaped, so no
request or model name can forge a line; a record with `extra={"table": text}` has the lines of `text`, which
tpy.assembly.announcement has made safe, below its first line. LogTail keeps the newest lines in memory.

Source: Triton's logging extension; line formats from triton_logging. `json` and `plain` are ours.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from json.encoder import encode_basestring
from typing import TextIO

from tpy.errors import InvalidArgument, Unavailable, Unsupported
from tpy.limits import LOG_TAIL_LINE_CHARACTERS_MAX, LOG_TAIL_LINES_MAX
from tpy.messages import LogLine, LogSettings
from tpy.messages.server import LOG_FORMATS
from tpy.telemetry.log_writer import LogFile, LogStream, LogWriter, write_at_once

_log = logging.getLogger(__name__)

_OURS = ("tpy", "tpy_backends", "tpy_cloud", "tpy_control", "tpy_data", "tpy_native", "tpy_platforms")
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


LogTaker = Callable[[logging.LogRecord, str], None]
"""Takes a record and its message, in the thread that logs."""


class _Handler(logging.Handler):
    """Formats in the thread that logs, has it written in another; or gives it to a taker."""

    def __init__(self, writer: LogWriter, taker: LogTaker | None) -> None:
        super().__init__()
        self.writer = writer
        self._taker = taker

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written."""
        try:
            if self._taker is not None:
                self._taker(record, _message(record))
                return
            self.writer.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)  # a bug

    def close(self) -> None:
        """Write what waits, for a moment at most."""
        self.writer.close()
        super().close()


class LogController:
    """Owns the handler of our loggers. One per process; `install` and `remove` are its lifetime. `tail` has the newest lines, as
    many as `kept_lines_max`. With a `taker` nothing is written: it gets the records."""

    def __init__(
        self,
        settings: LogSettings,
        *,
        stream: TextIO | None = None,
        kept_lines_max: int = LOG_TAIL_LINES_MAX,
        taker: LogTaker | None = None,
    ) -> None:
        self.tail = LogTail(lines_max=kept_lines_max)
        self._filter = _Filter()
        self._settings = settings
        self._stream = stream
        self._handler = _Handler(LogWriter(self._destination(settings.log_file), on_recovered=dropped("server")), taker)
        self._handler.addFilter(self._filter)
        self.apply(settings)

    @property
    def settings(self) -> LogSettings:
        """The settings in force."""
        return self._settings

    @property
    def dropped(self) -> int:
        """The number of lines that could not be written in time, here and in frontend processes."""
        return self._handler.writer.dropped + self.tail.lost_count

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
            self._handler.writer.switch(LogFile(self._settings.log_file, may_wait=False))

    def announce(self, text: str) -> None:
        """Write a line to standard error as it is: among those of the log, in their order, where they go there too."""
        if self._settings.log_file:
            write_at_once(sys.stderr, f"{text}\n")
        else:
            self._handler.writer.write(f"{text}\n")

    def flush(self) -> None:
        """Return when every line is written that was logged before, or a moment later."""
        self._handler.writer.flush()

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

    def _destination(self, log_file: str) -> LogFile | LogStream:
        return LogFile(log_file) if log_file else LogStream(self._stream or sys.stderr)


def dropped(name: str) -> Callable[[int], None]:
    """A function that warns of lines that the log of this name has lost."""

    def warn(lines: int) -> None:
        _log.warning(
            "lines were dropped, because they could not be written in time", extra={"context": {"of": name, "lines": lines}}
        )

    return warn


def _formatter(log_format: str) -> logging.Formatter:
    match log_format:
        case "json":
            return JsonFormatter()
        case "plain":
            return PlainFormatter()
        case _:
            return TritonFormatter(iso8601=log_format == "ISO8601")


class LogTail:
    """Implements tpy.services.LogService. Lines come from any thread, one at a time, and are read on the Trio thread."""

    def __init__(self, *, lines_max: int = LOG_TAIL_LINES_MAX) -> None:
        self._lines = deque[LogLine](maxlen=lines_max)
        self._count = 0
        self.lost_count = 0
        """The lines of frontend processes that were lost."""

    def append(self, text: str) -> None:
        """Keep a line; the oldest one goes when there are too many."""
        if len(text) > LOG_TAIL_LINE_CHARACTERS_MAX:
            text = text[:LOG_TAIL_LINE_CHARACTERS_MAX] + " ..."
        self._count += 1
        self._lines.append(LogLine(number=self._count, text=text))

    def lost(self, lines: int) -> None:
        """See LogService."""
        self.lost_count += lines

    async def lines_after(self, number: int) -> list[LogLine]:
        """See LogService."""
        kept = self._lines.copy()  # in one step: another thread may append meanwhile
        if not kept:
            return []
        return list(islice(kept, max(0, number - kept[0].number + 1), None))


class KeepingFormatter(logging.Formatter):
    """Formats as `inner`, and keeps the lines in `tail`. A handler's lock is held meanwhile."""

    def __init__(self, inner: logging.Formatter, tail: LogTail) -> None:
        super().__init__()
        self._inner = inner
        self._tail = tail

    def format(self, record: logging.LogRecord) -> str:
        """The text of `inner`."""
        text = self._inner.format(record)
        self._tail.append(text)
        return text
