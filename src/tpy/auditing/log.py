"""AuditLog: JSON lines about control actions. A line is one object:

    {"audit":"done","time":"2026-11-22T19:45:00.123456Z","id":"4711-1","action":"load","model":"m","result":"OK","ms":12.5,
     "protocol":"http","route":"POST /v2/repository/models/<model>/load","peer":"127.0.0.1:5000","caller":"ci"}

Members without a value are left out. With `required` an action has a line "begin" before it is carried out, and is refused when
that cannot be written.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, Token
from types import MappingProxyType, TracebackType
from typing import Any, Self

import trio

from tpy.auditing.certificate import certificate_name
from tpy.clock import Clock
from tpy.echo import echo
from tpy.errors import ErrorCode, InvalidArgument, TpyError, Unavailable
from tpy.limits import AUDIT_ERROR_CHARACTERS_MAX, AUDIT_REFUSALS_PER_S_MAX, AUDIT_WRITE_S_MAX
from tpy.messages import AuditLogOptions
from tpy.reloading import reload_reported, reloaded
from tpy.telemetry.log_writer import LogFile, LogStream, LogWriter
from tpy.telemetry.logs import dropped, one_line
from tpy.units import NS_PER_MS, NS_PER_S

STANDARD_ERROR = "-"
_MODE = 0o600
_REFUSALS = frozenset((ErrorCode.UNAUTHENTICATED, ErrorCode.PERMISSION_DENIED, ErrorCode.FORBIDDEN))

_present = ContextVar["Action | None"]("control action", default=None)


@contextmanager
def audit_log(options: AuditLogOptions, clock: Clock, *, reports_reloads: bool = False) -> Iterator[AuditLog | None]:
    """The audit log for the length of the block; None without a file, which is opened again at a reload. `reports_reloads`:
    each has a line. Raises InvalidArgument for a file that cannot be written."""
    if not options.file:
        yield None
        return
    lines = _Lines(options.file)
    log = AuditLog(lines, clock, required=options.required)
    try:
        with reloaded(lines.reopen), reload_reported(log.note_reload) if reports_reloads else nullcontext():
            yield log
    finally:
        lines.close()


class AuditLog:
    """Implements tpy.services.AuditService. On the Trio thread."""

    def __init__(self, lines: _Lines, clock: Clock, *, required: bool) -> None:
        self.required = required
        self._lines = lines
        self._clock = clock
        self._count = 0
        self._second = 0
        self._refusals = 0
        """Refused calls of this second that have a line."""
        self._left_out = 0

    @property
    def dropped(self) -> int:
        """The number of lines that could not be written."""
        return self._lines.dropped

    def flush(self) -> None:
        """Return when every line is written that was there before, or a moment later."""
        self._lines.flush()

    def action(
        self,
        protocol: str,
        route: str,
        *,
        peer: str = "",
        certificate: Any = None,
        caller: str = "",
        model: str = "",
    ) -> Action:
        """See AuditService."""
        self._count += 1
        return Action(
            self,
            {
                "id": f"{os.getpid()}-{self._count}",
                "action": route,
                "model": model,
                "protocol": protocol,
                "route": route,
                "peer": peer,
                "certificate": echo(certificate_name(certificate)),
                "caller": caller,
            },
            self._clock.now_ns(),
        )

    def note(
        self,
        protocol: str,
        action: str,
        details: Mapping[str, object] = MappingProxyType({}),
        *,
        route: str = "",
        model: str = "",
        error: str = "",
    ) -> None:
        """Write a line about a change that nobody asked for by a call: a signal, a file that has changed, a step of a rollout."""
        self._count += 1
        facts = {
            "id": f"{os.getpid()}-{self._count}",
            "action": action,
            "model": echo(model),
            "protocol": protocol,
            "route": route,
        }
        self._write("done", {**facts, "result": "ERROR" if error else "OK", "error": _cut(error), "details": dict(details)})

    def note_reload(self, why: str, failures: int) -> None:
        """Files were read again."""
        self.note("signal", "reload", route=why, error=f"{failures} could not be read again, see the log" if failures else "")

    async def begin(self, facts: dict[str, object]) -> None:
        """Write what is known of an action before it is carried out, where that is required. Raises Unavailable."""
        if self.required and not await self._lines.write_surely(self._line("begin", facts)):
            raise Unavailable("the audit log cannot be written, so nothing can be changed (--audit-log-required)")

    def end(self, facts: dict[str, object], begun_ns: int, error: TpyError | None, result: str) -> None:
        """Write how an action has ended. Of calls that were refused for who sent them only some have a line in each second."""
        if error is not None and error.code in _REFUSALS and not self._may_write_refusal():
            self._left_out += 1
            return
        ms = round((self._clock.now_ns() - begun_ns) / NS_PER_MS, 3)
        text = "" if error is None else _cut(error.message)
        self._write("done", {**facts, "result": result, "error": text, "ms": ms})

    def _may_write_refusal(self) -> bool:
        second = self._clock.now_ns() // NS_PER_S
        if second != self._second:
            self._second, self._refusals = second, 0
        self._refusals += 1
        return self._refusals <= AUDIT_REFUSALS_PER_S_MAX

    def _write(self, kind: str, facts: dict[str, object]) -> None:
        self._lines.write(self._line(kind, facts))

    def _line(self, kind: str, facts: dict[str, object]) -> str:
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        left_out, self._left_out = self._left_out, 0
        return line_of({"audit": kind, "time": time, **facts, "refusals_left_out": left_out})


def line_of(members: Mapping[str, object]) -> str:
    """A line with these members, but for those without a value. No text in them ends it or moves a terminal."""
    shown = {name: value for name, value in members.items() if value or name == "ms"}
    return one_line(json.dumps(shown, ensure_ascii=False, separators=(",", ":"))) + "\n"


class Action:
    """Implements tpy.services.ControlAction. While its block runs it is the present one, whose changes the services note."""

    def __init__(self, log: AuditLog, facts: dict[str, object], begun_ns: int) -> None:
        self._log = log
        self._facts = facts
        self._begun_ns = begun_ns
        self._token: Token[Action | None] | None = None
        self._is_over = False
        self._result = "OK"

    def __enter__(self) -> Self:
        self._token = _present.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._token is not None:
            _present.reset(self._token)
        if self._is_over:
            return
        self._is_over = True
        match error:
            case None:
                self._log.end(self._facts, self._begun_ns, None, self._result)
            case TpyError():
                self._log.end(self._facts, self._begun_ns, error, error.code.name)
            case Exception():
                self._log.end(self._facts, self._begun_ns, None, ErrorCode.INTERNAL.name)
            case _:  # the client has left, or the server ends
                self._log.end(self._facts, self._begun_ns, None, ErrorCode.CANCELLED.name)

    @property
    def is_over(self) -> bool:
        """True for one whose line is written. Tasks that were started in its block may outlive it."""
        return self._is_over

    def identified(self, caller: str, model: str) -> None:
        """See ControlAction."""
        self._facts["caller"] = caller
        self._facts["model"] = echo(model)

    def changes(self, action: str, **details: object) -> None:
        """Note what is changed. `target` is the name of a model; it may be another one than that in the call."""
        self._facts["action"] = action
        self._facts["details"] = {
            name: value for name, value in details.items() if name != "target" or value != self._facts["model"]
        }

    def ended(self, result: str) -> None:
        """See ControlAction."""
        self._result = result

    def forget(self) -> None:
        """See ControlAction."""
        self._is_over = True

    async def begin(self) -> None:
        """See ControlAction."""
        await self._log.begin(self._facts)


def present_action() -> Action | None:
    """The action in whose block the caller runs."""
    action = _present.get()
    return None if action is None or action.is_over else action


class _File(LogFile):
    """A file whose lines are whole: what follows a line that a full disk has cut off begins a new one."""

    def __init__(self, path: str, *, may_wait: bool) -> None:
        super().__init__(path, may_wait=may_wait, mode=_MODE)
        self._is_torn = False

    def write(self, text: str) -> None:
        """Append all of it. Raises OSError."""
        try:
            super().write("\n" + text if self._is_torn else text)
        except OSError:
            self._is_torn = True
            raise
        self._is_torn = False


class _Lines:
    """The file, or standard error."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._writer = LogWriter(self._open(may_wait=True), on_recovered=dropped("audit"))

    @property
    def dropped(self) -> int:
        return self._writer.dropped

    def write(self, line: str) -> None:
        """Have a line written. What cannot be is lost and counted."""
        self._writer.write(line)

    async def write_surely(self, line: str) -> bool:
        """Have a line written, and wait for that. False when it cannot be, or takes too long."""
        token = trio.lowlevel.current_trio_token()
        written = trio.Event()
        outcome = False

        def done(was_written: bool) -> None:
            nonlocal outcome
            outcome = was_written
            written.set()

        self._writer.write_confirmed(line, _in_loop(token, done))
        with trio.move_on_after(AUDIT_WRITE_S_MAX):
            await written.wait()
        return outcome

    def reopen(self) -> None:
        """Whoever rotates logs has renamed the file. Raises InvalidArgument when it cannot be; the old one stays in use then."""
        opened = self._open(may_wait=False)
        if isinstance(opened, LogFile):
            self._writer.switch(opened)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _open(self, *, may_wait: bool) -> LogFile | LogStream:
        if self._file == STANDARD_ERROR:
            return LogStream(sys.stderr)
        try:
            return _File(self._file, may_wait=may_wait)
        except OSError as error:
            raise InvalidArgument(f"--audit-log: cannot write '{self._file}': {error.strerror}") from None


def _in_loop(token: trio.lowlevel.TrioToken, done: Callable[[bool], None]) -> Callable[[bool], None]:
    """Returns `done` for the thread that writes. The loop may have ended before it."""

    def tell(was_written: bool) -> None:
        try:
            token.run_sync_soon(done, was_written)
        except trio.RunFinishedError:
            return

    return tell


def _cut(text: str) -> str:
    return echo(text, AUDIT_ERROR_CHARACTERS_MAX)
