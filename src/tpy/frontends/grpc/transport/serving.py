"""Serves the gRPC port, on the transport of all ports."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import trio

from tpy.clock import Clock
from tpy.deliveries import Deliveries
from tpy.frontends.grpc.transport.call import Handlers
from tpy.frontends.grpc.transport.connection import run_connection
from tpy.frontends.grpc.transport.options import GrpcOptions
from tpy.frontends.grpc.transport.port import GrpcPort
from tpy.frontends.transport import UNIX, BoundAddress, Wire, serve_port


async def serve_grpc(
    options: GrpcOptions,
    handlers: Handlers,
    clock: Clock,
    *,
    deliveries: Deliveries | None = None,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `handlers` as `serve_port` does.

    From `stop` on every connection gets a GOAWAY, and only calls that were under way to us when it was sent are still begun. The
    answers on a connection in one block of `deliveries` leave in one piece.
    """
    port = GrpcPort(options, handlers, clock, deliveries)

    async def serve(wire: Wire, connected: socket.socket) -> None:
        await run_connection(port, wire, _peer_of(connected))

    await serve_port(port, serve, stop=stop, inherited=inherited, task_status=task_status)


def _peer_of(connected: socket.socket) -> str:
    """`ipv4:127.0.0.1:5000`, `ipv6:[::1]:5000` or `unix:`. Raises OSError when the connection is gone already."""
    if connected.family == socket.AF_UNIX:
        return UNIX
    name = connected.getpeername()
    return f"ipv6:[{name[0]}]:{name[1]}" if connected.family == socket.AF_INET6 else f"ipv4:{name[0]}:{name[1]}"
