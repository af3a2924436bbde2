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
from tpy.frontends.transport import BoundAddress, Ends, Wire, serve_port


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

    async def serve(wire: Wire, ends: Ends) -> None:
        await run_connection(port, wire, str(ends.client) if ends.client.host else "")

    await serve_port(port, serve, stop=stop, inherited=inherited, task_status=task_status)
