"""The HTTP and gRPC ports: served in this process, or by frontend processes that share their sockets."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import msgspec
import trio

from tpy.assembly.options import ServerOptions
from tpy.clock import Clock
from tpy.frontend_process import FrontendOptions
from tpy.frontends.grpc import GrpcServiceOptions, serve_grpc_services
from tpy.frontends.http import serve_http
from tpy.frontends.transport import BoundAddress, address_of, close, listen
from tpy.limits import ANSWERS_STOP_S
from tpy.remote import FrontendCommand, run_frontend_processes
from tpy.services import Services

_MODULE = "tpy.frontend_process"


class Ports(NamedTuple):
    """The ports that are served, by name. `tell` waits until all of them answer by what the engine serves now."""

    addresses: dict[str, BoundAddress]
    tell: Callable[[], Awaitable[None]]


@asynccontextmanager
async def open_ports(
    options: ServerOptions, services: Services, clock: Clock, *, stop: trio.Event, give_up: trio.Event
) -> AsyncIterator[Ports]:
    """Serve the ports for the length of the block, which begins early when `give_up` is set. To be left when `stop` is set; then
    what is in flight is answered first."""
    if options.frontend_processes and (options.http is not None or options.grpc is not None):
        async with _in_processes(options, services, stop, give_up) as ports:
            yield ports
        return
    addresses = {}
    async with trio.open_nursery() as nursery:
        if options.http is not None:
            addresses["HTTP"] = await nursery.start(partial(serve_http, options.http, services, clock, stop=stop))
        if options.grpc is not None:
            transport, own = options.grpc.transport, options.grpc.services
            serve = partial(serve_grpc_services, transport, own, services, clock, stop=stop)
            addresses["gRPC"] = await nursery.start(serve)
        yield Ports(addresses, trio.lowlevel.checkpoint)


@asynccontextmanager
async def _in_processes(
    options: ServerOptions, services: Services, stop: trio.Event, give_up: trio.Event
) -> AsyncIterator[Ports]:
    """The sockets are this process's: connections wait in them while a frontend process is replaced."""
    http, grpc = options.http, options.grpc
    bound: dict[str, tuple[list[socket.socket], BoundAddress]] = {}
    try:
        for name, port in (("HTTP", http), ("gRPC", grpc.transport if grpc else None)):
            if port is not None:
                sockets = await listen(port.address, port.port, reuse_port=port.reuse_port)
                bound[name] = sockets, address_of(sockets[0])
        descriptors = {name: tuple(each.fileno() for each in sockets) for name, (sockets, _) in bound.items()}
        frontend = FrontendOptions(
            switch_interval_s=sys.getswitchinterval(),
            http=http,
            http_sockets=descriptors.get("HTTP", ()),
            grpc=grpc.transport if grpc else None,
            grpc_services=grpc.services if grpc else GrpcServiceOptions(),
            grpc_sockets=descriptors.get("gRPC", ()),
        )
        command = FrontendCommand(
            module=_MODULE,
            options=msgspec.msgpack.encode(frontend),
            sockets=(*frontend.http_sockets, *frontend.grpc_sockets),
            drain_timeout_s=options.exit_timeout_s + ANSWERS_STOP_S,
        )
        async with trio.open_nursery() as nursery:
            run = partial(run_frontend_processes, options.frontend_processes, command, services, stop=stop, give_up=give_up)
            tell = await nursery.start(run)
            nursery.start_soon(_close_at_stop, [each for sockets, _ in bound.values() for each in sockets], stop)
            yield Ports({name: address for name, (_, address) in bound.items()}, tell)
    finally:
        for sockets, address in bound.values():
            close(sockets, address)


async def _close_at_stop(sockets: list[socket.socket], stop: trio.Event) -> None:
    """Nobody connects any more: the processes close theirs, too."""
    await stop.wait()
    for each in sockets:
        each.close()
