"""AccessLog: a line for each request that a client made, in a separate file; and a warning for each slow one.

A line is written when the answer has left. Requests that models make, and steps of ensembles, are part of another request, which
has one. The text form:

    2026-11-22T19:45:00.123456Z 127.0.0.1:5000 http m/1 OK 812us (queue 12 input 3 infer 700 output 4) in=64 out=120 id="7"
"""

from __future__ import annotations

import datetime
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.messages import RequestRecord
from tpy.observers import RequestObserver
from tpy.reloading import reloaded
from tpy.telemetry.log_writer import LogFile, LogStream, LogWriter
from tpy.telemetry.logs import dropped, escape, one_line
from tpy.units import NS_PER_MS, NS_PER_US

_log = logging.getLogger(__name__)

ACCESS_LOG_FORMATS = ("text", "json")
STANDARD_OUTPUT = "-"


class AccessLogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`file` is a path, "-" for standard output, "" for no access log. One request in `sample` has a line there. A request that
    takes `slow_ms` milliseconds or more is a warning in the server's log, 0: never."""

    file: str = ""
    format: str = "text"
    sample: int = 1
    slow_ms: int = 0


@contextmanager
def access_log(options: AccessLogOptions) -> Iterator[AccessLog | None]:
    """The access log for the length of the block; None when nothing of it is wanted. Its file is opened again at a reload.

    Raises InvalidArgument for a file that cannot be written."""
    if not options.file:
        yield AccessLog(options, None) if options.slow_ms else None
        return
    lines = _Lines(options.file)
    try:
        with reloaded(lines.reopen):
            yield AccessLog(options, lines)
    finally:
        lines.close()


class AccessLog(RequestObserver):
    """Observes requests: writes their lines to `lines`, if there are any, and warns of slow ones."""

    def __init__(self, options: AccessLogOptions, lines: _Lines | None) -> None:
        self._lines = lines
        self._write = _json_line if options.format == "json" else _text_line
        self._sample = options.sample
        self._slow_ns = options.slow_ms * NS_PER_MS
        self._count = 0

    @property
    def dropped(self) -> int:
        """The number of lines that could not be written in time."""
        return 0 if self._lines is None else self._lines.dropped

    def finished(self, record: RequestRecord) -> None:
        """Write its line, and the warning."""
        if record.parent is not None or record.protocol == "call":
            return
        if self._slow_ns and _total_ns(record) >= self._slow_ns:
            _log.warning("slow request", extra={"context": _facts(record)})
        if self._lines is not None:
            self._count += 1
            if self._count >= self._sample:
                self._count = 0
                self._lines.write(self._write(record))


class _Lines:
    """The file. What cannot be written is lost, with one line on standard error."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._writer = LogWriter(self._open(may_wait=True), on_recovered=dropped("access"))

    @property
    def dropped(self) -> int:
        return self._writer.dropped

    def write(self, line: str) -> None:
        self._writer.write(line + "\n")

    def reopen(self) -> None:
        """Whoever rotates logs has renamed the file. Raises InvalidArgument when it cannot be; the old one stays in use then."""
        opened = self._open(may_wait=False)
        if isinstance(opened, LogFile):
            self._writer.switch(opened)

    def close(self) -> None:
        self._writer.close()

    def _open(self, *, may_wait: bool) -> LogFile | LogStream:
        if self._file == STANDARD_OUTPUT:
            return LogStream(sys.stdout)
        try:
            return LogFile(self._file, may_wait=may_wait)
        except OSError as error:
            raise InvalidArgument(f"--access-log: cannot write '{self._file}': {error.strerror}") from None


def _total_ns(record: RequestRecord) -> int:
    return record.finished_ns - (record.begun_ns or record.received_ns or record.submitted_ns)


def _facts(record: RequestRecord) -> dict[str, object]:
    """All of a line but the time."""
    facts: dict[str, object] = {
        "protocol": record.protocol,
        "peer": record.peer,
        "model": echo(record.model),
        "version": record.version,
        "id": echo(record.id),
        "status": record.status or "OK",
        "total_us": _total_ns(record) // NS_PER_US,
    }
    if record.started_ns is not None:
        facts["queue_us"] = (record.started_ns - record.submitted_ns) // NS_PER_US
        facts["input_us"] = record.input_ns // NS_PER_US
        facts["infer_us"] = record.infer_ns // NS_PER_US
        facts["output_us"] = record.output_ns // NS_PER_US
    facts["responses"] = record.responses
    facts["request_bytes"] = record.request_bytes
    facts["response_bytes"] = record.response_bytes
    if record.error:
        facts["error"] = record.error
    if trace_id := trace_id_of(record):
        facts["trace_id"] = trace_id
    return facts


def trace_id_of(record: RequestRecord) -> str:
    """The trace that the caller says that the request belongs to (W3C Trace Context), 32 hexadecimal digits; "" for none."""
    parts = record.headers.get("traceparent", "").split("-")
    if len(parts) < 4 or len(parts[1]) != 32 or not set(parts[1]) <= _HEX or set(parts[1]) == {"0"}:
        return ""
    return parts[1]


_AMBIGUOUS = re.compile(r'[\s"()]')
"""Characters with which the name of a model could be taken for what stands behind it."""

_HEX = frozenset("0123456789abcdef")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _json_line(record: RequestRecord) -> str:
    return one_line(msgspec.json.encode({"time": _now(), **_facts(record)}).decode())


def _text_line(record: RequestRecord) -> str:
    facts = _facts(record)
    phases = ""
    if "queue_us" in facts:
        names = ("queue", "input", "infer", "output")
        phases = " (" + " ".join(f"{name} {facts[f'{name}_us']}" for name in names) + ")"
    model = escape(echo(record.model))
    if not _AMBIGUOUS.search(model[1:-1]):
        model = model[1:-1]
    model += f"/{'-' if record.version is None else record.version}"
    line = f"{_now()} {record.peer or '-'} {record.protocol} {model} {facts['status']} {facts['total_us']}us{phases}"
    line += f" in={record.request_bytes} out={record.response_bytes}"
    if record.responses != 1:
        line += f" responses={record.responses}"
    for name in ("id", "trace_id", "error"):
        if facts.get(name):
            line += f" {name}={escape(str(facts[name]))}"
    return line
