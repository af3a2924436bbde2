"""A frontend process: frontends over an engine in another process (`tpy serve --frontend-processes`).

The second, small composition root. `tpy.remote.processes` starts it as a template, which imports the frontends of the names on
its command line and is forked for each process. A process ends when the engine does, however that ends. Its nursery tree:

    main
    +-- open_engine         the connection to the engine
        +-- ports           of the frontends that need not be in the engine, on inherited sockets
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio

from tpy.clock import Clock, SystemClock
from tpy.errors import TpyError, Unavailable
from tpy.frontends.table import frontends
from tpy.limits import LOST_LINES_TOLD_S
from tpy.messages import AuditLogOptions
from tpy.reactor import reactor_of_run
from tpy.regions import maps
from tpy.reloading import reload, reloaded
from tpy.remote import EngineGone, EngineLink, open_engine, remote_services
from tpy.remote.link import SocketWire
from tpy.services import Services
from tpy.telemetry.logs import LogController
from tpy.templates import TEMPLATE
from tpy_data.backends.python.worker.template import serve as serve_orders

if TYPE_CHECKING:
    from tpy.auditing import AuditLog

_log = logging.getLogger(__name__)


_IGNORED = (
    *(
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGQUIT,
        signal.SIGPWR,
        signal.SIGXCPU,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
    ),
    *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGSTKFLT),
)
"""SIGHUP only until its receiver is there: the server sends it when it gets one itself."""


class PortOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a frontend, of its `Implementation.Options`, and the places of its listening sockets in the list of sockets
    that a process gets."""

    options: msgspec.Raw
    sockets: tuple[int, ...]


class FrontendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a frontend process serves: `ports` by name in the table of frontends."""

    switch_interval_s: float
    audit_log: AuditLogOptions
    ports: dict[str, PortOptions]


def main(arguments: Sequence[str]) -> int:
    """`arguments` are names of frontends, and what `tpy.templates` says to a template."""
    # The server stops us in order, also when a whole group of processes is signalled; and we end when it does.
    for number in (*_IGNORED, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)):
        signal.signal(number, signal.SIG_IGN)
    if TEMPLATE not in arguments:
        print("tpy.frontend_process is started by tpy serve --frontend-processes", file=sys.stderr)
        return 2
    names, control = arguments[: arguments.index(TEMPLATE)], int(arguments[arguments.index(TEMPLATE) + 1])
    for name in names:
        frontends()[name].load_all()
    os.set_inheritable(control, False)
    forked = serve_orders(socket.socket(fileno=control))
    if forked is None:
        return 0
    (connection, own, peer, *sockets), _ = forked
    try:
        trio.run(_serve, socket.socket(fileno=connection), own, peer, sockets)
    except BaseExceptionGroup as group:
        _, others = group.split(EngineGone)
        if others is not None:
            raise others from None
        return 1
    return 0


async def _serve(connection: socket.socket, own: int, peer: int, sockets: Sequence[int]) -> None:
    async with open_engine(SocketWire(connection), own=own, peer=peer) as engine:
        options = msgspec.msgpack.decode(engine.configuration.options, type=FrontendOptions)
        sys.setswitchinterval(options.switch_interval_s)
        try:
            logs = LogController(engine.configuration.log)
        except OSError as error:
            engine.send_failed(Unavailable(f"--log-file: cannot write '{engine.configuration.log.log_file}': {error.strerror}"))
            return
        logs.install()
        engine.on_log_settings = logs.apply
        try:
            with reloaded(logs.reopen), maps.guarded() if engine.replica.server.shared_memory is None else nullcontext():
                await _serve_ports(options, engine, logs, sockets)
        finally:
            logs.remove()


async def _serve_ports(options: FrontendOptions, engine: EngineLink, logs: LogController, sockets: Sequence[int]) -> None:
    """Until the engine asks to stop and what is in flight is answered."""
    clock, stop = SystemClock(), engine.stop_asked
    reactor_of_run(clock).shares_descriptors = True
    try:
        with _audited(options, remote_services(engine), clock) as (services, audit):
            losing: list[_Losing] = [logs] if audit is None else [logs, audit]
            async with trio.open_nursery() as reloading:
                await reloading.start(_reload_at_signals)
                reloading.start_soon(_tell_lost_lines, engine, losing)
                async with trio.open_nursery() as ports:
                    for name, port in options.ports.items():
                        frontend = frontends()[name].load()
                        decoded = msgspec.msgpack.decode(port.options, type=frontend.Options)
                        serve = partial(frontend.serve, decoded, services, clock)
                        inherited = [socket.socket(fileno=sockets[place]) for place in port.sockets]
                        await ports.start(partial(serve, stop=stop, inherited=inherited))
                    engine.send_ready()
                reloading.cancel_scope.cancel()
    except* TpyError as group:
        engine.send_failed(_first(group))


@contextmanager
def _audited(options: FrontendOptions, services: Services, clock: Clock) -> Iterator[tuple[Services, AuditLog | None]]:
    """The services with the audit log around them, where there is one: this process writes its own lines to the same file."""
    if not options.audit_log.file:
        yield services, None
        return
    from tpy.auditing import audit_log, audited_services

    with audit_log(options.audit_log, clock) as audit:
        assert audit is not None
        yield audited_services(services, audit), audit


async def _reload_at_signals(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGHUP) as received:
        task_status.started()
        async for _ in received:
            reload(signal.SIGHUP.name)


class _Losing(Protocol):
    """A log that tells how many lines it has lost."""

    @property
    def dropped(self) -> int: ...


async def _tell_lost_lines(engine: EngineLink, logs: Sequence[_Losing]) -> None:
    """Tell the engine, whose metrics count them, of lines of this process's logs that could not be written."""
    told = 0
    while True:
        lost = sum(log.dropped for log in logs)
        if lost > told:
            engine.send_lost_lines(lost - told)
            told = lost
        await trio.sleep(LOST_LINES_TOLD_S)


def _first(group: BaseExceptionGroup[TpyError]) -> TpyError:
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("a group without exceptions")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
