"""The ports of all frontends: served in this process, or by frontend processes that share their sockets.

The nursery tree:

    open_ports
    +-- last ports          the metrics: served until the others have drained
        +-- ports here      on stop no new connections; open ones get answers, and close
            +-- run_frontend_processes, which has ports in other processes

Until they are open, `open_starting_ports` answers health checks at the same sockets.
"""

from __future__ import annotations

import itertools
import logging
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import msgspec
import trio

from tpy.assembly.options import ServerOptions
from tpy.clock import Clock
from tpy.errors import Unavailable
from tpy.frontends.table import frontends
from tpy.frontends.transport import BoundAddress, ListenOptions, address_of, check, close, listen
from tpy.limits import ANSWERS_STOP_S
from tpy.reactor import reactor_of_run
from tpy.services import Services

_log = logging.getLogger(__name__)

_MODULE = "tpy.frontend_process"
_LAST_PORTS_STOP_S = 1.0


class Ports(NamedTuple):
    """The ports that are served, by name. `publish` waits until all of them answer by what the engine serves now."""

    addresses: dict[str, BoundAddress]
    publish: Callable[[], Awaitable[None]]


async def check_ports(options: ServerOptions) -> None:
    """Raise Unavailable for a port that cannot be bound, with Triton's words: at once, not when all models are loaded."""
    for name, port in options.frontends.items():
        try:
            await check(port.address, port.port, reuse_port=port.reuse_port)
        except Unavailable as error:
            service = re.sub("(Inference| HTTP)?Service$", "", frontends()[name].service).strip()
            raise Unavailable(f"failed to start {service} service: Unavailable - {error.message}") from error


Sockets = dict[str, list[socket.socket]]
"""Listening sockets by the names of frontends."""


class StartingPorts(NamedTuple):
    """The sockets of ports that answer health checks until `stop` is set."""

    sockets: Sockets
    stop: trio.Event


@asynccontextmanager
async def open_starting_ports(options: ServerOptions, clock: Clock, nursery: trio.Nursery) -> AsyncIterator[StartingPorts]:
    """Listen at the ports whose frontends answer while the server starts, and answer there, in `nursery`. The sockets are closed
    with the block: whoever serves them afterwards listens on them, and no client is refused in between."""
    stop = trio.Event()
    reactor_of_run(clock).shares_descriptors = options.frontend_processes > 0
    sockets: Sockets = {}
    addresses = {}
    try:
        for name, port in options.frontends.items():
            frontend = frontends()[name]
            starting = frontend.load_starting()
            if starting is None:
                continue
            sockets[name] = await listen(port.address, port.port, reuse_port=port.reuse_port)
            addresses[name] = address_of(sockets[name][0])
            inherited = [each.dup() for each in sockets[name]]
            await nursery.start(partial(starting.serve_health, port, clock, stop=stop, inherited=inherited))
            if not options.serve_while_loading:
                _log.info("%(name)s answers health checks at %(address)s", {"name": frontend.name, "address": addresses[name]})
        yield StartingPorts(sockets, stop)
    finally:
        for name, address in addresses.items():
            close(sockets[name], address)


@asynccontextmanager
async def open_ports(
    options: ServerOptions,
    services: Services,
    audited: Services,
    clock: Clock,
    *,
    sockets: Sockets,
    stop: trio.Event,
    give_up: trio.Event,
) -> AsyncIterator[Ports]:
    """Serve the ports, at `sockets` where they have some already, for the length of the block, which begins early when `give_up`
    is set. Those of this process ask `audited`; frontend processes log control actions themselves. To be left when `stop` is
    set; then what is in flight is answered first."""
    known = frontends()
    last = {name: each for name, each in options.frontends.items() if known[name].until_drained}
    others = {name: each for name, each in options.frontends.items() if name not in last}
    here = {name: each for name, each in others.items() if known[name].engine_only or not options.frontend_processes}
    there = {name: each for name, each in others.items() if name not in here}
    drained = trio.Event()
    async with trio.open_nursery() as nursery:
        addresses = await _serve(last, sockets, audited, clock, drained, nursery)
        opened = _in_processes(options, there, sockets, services, stop, give_up) if there else _here({}, {}, audited, clock, stop)
        async with _here(here, sockets, audited, clock, stop) as near, opened as ports:
            yield ports._replace(addresses=dict(sorted({**addresses, **near.addresses, **ports.addresses}.items())))
        drained.set()
        nursery.cancel_scope.deadline = trio.current_time() + _LAST_PORTS_STOP_S


async def _serve(
    ports: Mapping[str, ListenOptions],
    sockets: Sockets,
    services: Services,
    clock: Clock,
    stop: trio.Event,
    nursery: trio.Nursery,
) -> dict[str, BoundAddress]:
    """Serve the ports in `nursery`; returns their addresses."""
    addresses = {}
    for name, port in ports.items():
        frontend = frontends()[name]
        serve = partial(frontend.load().serve, port, services, clock, stop=stop, inherited=sockets.get(name, ()))
        addresses[frontend.name] = await nursery.start(serve)
    return addresses


@asynccontextmanager
async def _here(
    ports: Mapping[str, ListenOptions], sockets: Sockets, services: Services, clock: Clock, stop: trio.Event
) -> AsyncIterator[Ports]:
    async with trio.open_nursery() as nursery:
        yield Ports(await _serve(ports, sockets, services, clock, stop, nursery), trio.lowlevel.checkpoint)


@asynccontextmanager
async def _in_processes(
    options: ServerOptions,
    ports: Mapping[str, ListenOptions],
    taken: Sockets,
    services: Services,
    stop: trio.Event,
    give_up: trio.Event,
) -> AsyncIterator[Ports]:
    """The sockets are this process's: connections wait in them while a frontend process is replaced."""
    from tpy.frontend_process import FrontendOptions, PortOptions
    from tpy.remote import FrontendCommand, run_frontend_processes

    bound: dict[str, tuple[list[socket.socket], BoundAddress]] = {}
    try:
        for name, port in ports.items():
            sockets = taken.get(name) or await listen(port.address, port.port, reuse_port=port.reuse_port)
            bound[name] = sockets, address_of(sockets[0])
        place = itertools.count()
        frontend = FrontendOptions(
            switch_interval_s=sys.getswitchinterval(),
            audit_log=options.audit_log,
            ports={
                name: PortOptions(
                    options=msgspec.Raw(msgspec.msgpack.encode(port)),
                    sockets=tuple(next(place) for _ in bound[name][0]),
                )
                for name, port in ports.items()
            },
        )
        command = FrontendCommand(
            module=_MODULE,
            frontends=tuple(ports),
            options=msgspec.msgpack.encode(frontend),
            sockets=tuple(each.fileno() for sockets, _ in bound.values() for each in sockets),
            drain_timeout_s=options.exit_timeout_s + ANSWERS_STOP_S,
        )
        async with trio.open_nursery() as nursery:
            run = partial(run_frontend_processes, options.frontend_processes, command, services, stop=stop, give_up=give_up)
            publish = await nursery.start(run)
            nursery.start_soon(_close_at_stop, [each for sockets, _ in bound.values() for each in sockets], stop)
            yield Ports({frontends()[name].name: address for name, (_, address) in bound.items()}, publish)
    finally:
        for sockets, address in bound.values():
            close(sockets, address)


async def _close_at_stop(sockets: list[socket.socket], stop: trio.Event) -> None:
    """Nobody connects any more: the processes close theirs, too."""
    await stop.wait()
    for each in sockets:
        each.close()
