"""Serves the gRPC port: sockets in, connections out, an orderly stop."""

from __future__ import annotations

import trio

from tpy.clock import Clock
from tpy.frontends.grpc.transport.address import BoundAddress, address_of, listen, remove_socket_file
from tpy.frontends.grpc.transport.call import Handlers
from tpy.frontends.grpc.transport.options import GrpcOptions


async def serve_grpc(
    options: GrpcOptions,
    handlers: Handlers,
    clock: Clock,
    *,
    stop: trio.Event,
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `handlers` until `stop` is set and what was in flight has been answered (at most `options.drain_timeout_s`; what is
    left is cancelled then).

    From `stop` on no connection is accepted, every connection gets a GOAWAY, and only calls that were under way to us when it
    was sent are still begun. Reports the bound address as soon as connections are accepted. Raises Unavailable when the address
    cannot be bound and InvalidArgument for options that cannot be served. Cancelled: stops at once, calls are cancelled.
    """
    sockets = await listen(options)
    address = address_of(sockets[0])
    try:
        task_status.started(address)
        await stop.wait()
    finally:
        for listening in sockets:
            listening.close()
        if address.path:
            remove_socket_file(address.path)
