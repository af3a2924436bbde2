"""Frontend processes: started, watched, replaced, stopped.

run_frontend_processes
+-- publisher           tells all of them what is served
+-- one keeper each     starts a process, answers it, waits for its end, starts the next one after a pause
    +-- its session     engine_side.run_session, Link.write and its calls

They are forked from one process that has imported what they need (`tpy.templates`): one takes a tenth of the CPU time of a new
interpreter, and a fifth of its memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
import trio

from tpy.errors import Unavailable
from tpy.limits.remote import (
    REMOTE_ARENA_BYTES,
    REMOTE_EXIT_GRACE_S,
    REMOTE_HEALTHY_S,
    REMOTE_RESTART_BACKOFF_S_MAX,
    REMOTE_RESTART_BACKOFF_S_MIN,
    REMOTE_STALL_S_MAX,
    REMOTE_START_S_MAX,
)
from tpy.reloading import reloaded
from tpy.remote.core.framing import ProtocolError
from tpy.remote.core.messages import FROM_FRONTEND, Stop
from tpy.remote.engine_side import FrontendSession, run_session
from tpy.remote.link import Link, SocketWire
from tpy.remote.memory import create_memory
from tpy.remote.publisher import Publisher
from tpy.services import Services
from tpy.templates import ForkedProcess, NoTemplate, Templates

_log = logging.getLogger(__name__)


_OUTPUT = 2, 2
"""Standard output and error: what a library prints is not an answer."""

_THREADS = 2
"""That wait for templates, which answer one order at a time."""

Tell = Callable[[], Awaitable[None]]
"""Waits until all frontend processes answer by what is served now."""


class FrontendCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The frontend processes' command: a Python module that is the template of all of them, and imports the `frontends` of these
    names. A process that it forks calls `open_engine` with the first three of the descriptors that it gets, with its `options`;
    the others are the listening `sockets`."""

    module: str
    frontends: tuple[str, ...]
    options: bytes
    sockets: tuple[int, ...]
    drain_timeout_s: float

    def of_template(self, executable: str, arguments: Sequence[str]) -> list[str]:
        """The template's, which `tpy.templates` gives these arguments."""
        return [executable, "-P", "-m", self.module, *self.frontends, *arguments]


async def run_frontend_processes(
    count: int,
    command: FrontendCommand,
    services: Services,
    *,
    stop: trio.Event,
    give_up: trio.Event,
    task_status: trio.TaskStatus[Tell] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve in `count` processes until `stop` is set and all of them have ended: by themselves when what was in flight has been
    answered, else by SIGKILL, after `command.drain_timeout_s` and a little.

    Started when all of them serve, or `give_up` is set before; hands out how to tell them at once, instead of soon, that
    something has changed. Raises TpyError when one of them cannot serve at the beginning; later ones are tried again.
    Cancelled: kills them.
    """
    publisher = Publisher(services)
    await publisher.refresh()
    forks = _Forks(command)
    async with trio.open_nursery() as publishing:
        publishing.start_soon(publisher.run)
        publishing.start_soon(forks.end_with, stop)
        async with trio.open_nursery() as keepers:
            slots = [_Slot(number, command, forks, services, publisher, stop) for number in range(count)]
            for slot in slots:
                keepers.start_soon(slot.keep)
            await _wait_began(slots, give_up)
            task_status.started(publisher.publish)
        publishing.cancel_scope.cancel()


async def _wait_began(slots: Sequence[_Slot], give_up: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def leave() -> None:
            await give_up.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(leave)
        for slot in slots:
            await slot.began.wait()
        nursery.cancel_scope.cancel()


class _Slot:
    """One place for a frontend process. `began` is set when its first one serves."""

    def __init__(
        self,
        number: int,
        command: FrontendCommand,
        forks: _Forks,
        services: Services,
        publisher: Publisher,
        stop: trio.Event,
    ) -> None:
        self.began = trio.Event()
        self._number = number
        self._command = command
        self._forks = forks
        self._services = services
        self._publisher = publisher
        self._stop = stop

    async def keep(self) -> None:
        """Have a process here until the shutdown. Raises TpyError when the first one cannot serve."""
        try:
            await self._keep()
        finally:
            self.began.set()

    async def _keep(self) -> None:
        pause_s = REMOTE_RESTART_BACKOFF_S_MIN
        while not self._stop.is_set():
            born = trio.current_time()
            how = await self._run_one()
            if self._stop.is_set():
                return
            if trio.current_time() - born >= REMOTE_HEALTHY_S:
                pause_s = REMOTE_RESTART_BACKOFF_S_MIN
            _log.error(f"frontend process {self._number} is replaced in {pause_s:g} s: {how}")
            with trio.move_on_after(pause_s):
                await self._stop.wait()
            pause_s = min(2 * pause_s, REMOTE_RESTART_BACKOFF_S_MAX)

    def _is_essential(self) -> bool:
        """Returns True if the server cannot start without the present process: the first one, unless the server is stopping."""
        return not self.began.is_set() and not self._stop.is_set()

    async def _run_one(self) -> str:
        """Run one process from start to end. Returns how it ended. Raises TpyError when it was the first and could not serve."""
        try:
            with _descriptors() as (ours, theirs, memories):
                process = await self._forks.start(str(self._number), (theirs.fileno(), *reversed(memories)))
                theirs.close()
                wire = SocketWire(ours)
                grace_s = 0.0
                try:
                    why = await self._serve(process, Link(wire, FROM_FRONTEND, stall_s=REMOTE_STALL_S_MAX), memories)
                    grace_s = 0.0 if why else REMOTE_EXIT_GRACE_S
                finally:
                    await process.end(wire, grace_s)
        except (OSError, NoTemplate) as error:  # no descriptors, processes or memory left
            if self._is_essential():
                raise Unavailable(f"cannot start a frontend process: {error}") from error
            return f"cannot be started: {error}"
        return why or process.end_text

    async def _serve(self, process: _Process, link: Link, memories: tuple[int, int]) -> str:
        """Answer the process until its end of the connection is closed. Returns the reason for ending it, if it does not end by
        itself."""
        broken = ""
        session: FrontendSession | None = None
        run = partial(run_session, link, self._services, self._publisher, options=self._command.options, memories=memories)
        try:
            async with trio.open_nursery() as nursery:
                session = await nursery.start(run)
                nursery.start_soon(self._watch_start, process, session, nursery.cancel_scope)
                nursery.start_soon(self._watch_stop, link, session, nursery.cancel_scope)
                await session.over.wait()
                nursery.cancel_scope.cancel()
        except* ProtocolError as group:
            broken = _text(group)
        except* Exception:  # a bug in a session ends that session
            _log.exception("the session of a frontend process failed unexpectedly")
            broken = "unexpected error in the server"
        if broken or session is None:
            return f"conversation failed: {broken}"
        if session.failure is not None:
            if self._is_essential():
                raise session.failure
            return session.failure.message
        if not session.ready.is_set():
            if self._is_essential():
                raise Unavailable("a frontend process ended before it served, its messages are above")
            return "ended before it served"
        return ""

    async def _watch_start(self, process: _Process, session: FrontendSession, scope: trio.CancelScope) -> None:
        with trio.move_on_after(REMOTE_START_S_MAX) as starting:
            await session.ready.wait()
            self.began.set()
        if starting.cancelled_caught:
            scope.cancel()
        else:
            with reloaded(process.reload):
                await trio.sleep_forever()

    async def _watch_stop(self, link: Link, session: FrontendSession, scope: trio.CancelScope) -> None:
        await self._stop.wait()
        if session.may_serve:
            link.send(Stop())
            await trio.sleep(self._command.drain_timeout_s + REMOTE_EXIT_GRACE_S)
        scope.cancel()


@contextmanager
def _descriptors() -> Iterator[tuple[socket.socket, socket.socket, tuple[int, int]]]:
    """The two ends of a connection, and two memories: for the engine's tensors, for the process's."""
    with contextlib.ExitStack() as stack:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        stack.callback(ours.close)
        stack.callback(theirs.close)
        memories: list[int] = []
        for _ in range(2):
            memories.append(create_memory(REMOTE_ARENA_BYTES))
            stack.callback(os.close, memories[-1])
        yield ours, theirs, (memories[0], memories[1])


def start_template(command: list[str], files: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Start what frontend processes are forked from, in its own process group, as each of them has one: Ctrl-C in the terminal
    goes to the server, which stops them in order. Raises OSError."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=_OUTPUT[0], pass_fds=files, process_group=0)


class _Forks:
    """Starts frontend processes. When its task `end_with` ends, nobody waits any longer for the template, which may hang, or have
    much to import."""

    def __init__(self, command: FrontendCommand) -> None:
        self._command = command
        self._templates = Templates(start_template, command.of_template, answer_s_max=REMOTE_START_S_MAX)
        self._threads = trio.CapacityLimiter(_THREADS)

    async def end_with(self, stop: trio.Event) -> None:
        """Until `stop` is set: what runs then needs no template, and none follows."""
        try:
            await stop.wait()
        finally:
            self._templates.close()

    async def start(self, name: str, files: Sequence[int]) -> _Process:
        """One with these descriptors and the listening sockets, of which the caller may close its own meanwhile. Raises OSError
        and NoTemplate."""
        with contextlib.ExitStack() as copies:
            given = [copies.enter_context(_copy_of(each)) for each in (*files, *self._command.sockets)]

            def fork() -> _Process:
                forked = self._templates.fork(sys.executable, name, (*given, *_OUTPUT))
                try:
                    return _Process(forked, self._threads)
                except OSError:
                    os.kill(forked.pid, signal.SIGKILL)
                    forked.wait()
                    raise

            return await trio.to_thread.run_sync(fork, limiter=self._threads)


@contextmanager
def _copy_of(descriptor: int) -> Iterator[int]:
    copy = os.dup(descriptor)
    try:
        yield copy
    finally:
        os.close(copy)


class _Process:
    """One frontend process."""

    def __init__(self, forked: ForkedProcess, threads: trio.CapacityLimiter) -> None:
        """Raises OSError."""
        self.end_text = "does not end"
        self._forked = forked
        self._threads = threads
        self._has_ended = False
        self._pid_descriptor = os.pidfd_open(forked.pid)

    def reload(self) -> None:
        """Have it read its files again."""
        self._signal(signal.SIGHUP)

    async def end(self, wire: SocketWire, grace_s: float) -> None:
        """Close the connection, at whose end the process ends; after `grace_s` it is killed. Call once."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + grace_s + REMOTE_EXIT_GRACE_S):
            await wire.aclose()
            with trio.move_on_after(grace_s):
                await self._wait()
            if not self._has_ended:
                self._signal(signal.SIGKILL)
                await self._wait()
        os.close(self._pid_descriptor)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pid_descriptor, number)

    async def _wait(self) -> None:
        await trio.lowlevel.wait_readable(self._pid_descriptor)
        self._has_ended = True
        with trio.CancelScope(shield=True):
            self.end_text = _exit_text(await trio.to_thread.run_sync(self._forked.wait, limiter=self._threads))


def _text(group: BaseExceptionGroup[ProtocolError]) -> str:
    return "; ".join(_text(error) if isinstance(error, BaseExceptionGroup) else str(error) for error in group.exceptions)


def _exit_text(status: int | None) -> str:
    if status is None:
        return "has ended, and so has the process that knows how"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}"
        return f"was ended by signal {-status}"
    return f"exited with status {status}"
