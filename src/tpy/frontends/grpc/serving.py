"""Serves all services on one gRPC port.

The nursery tree of a port:

    serve_grpc_services
    +-- calls               tasks of unary calls that wait; the rest of a call has none
        +-- serve_grpc      the transport: connections and streaming calls
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import nullcontext

import trio

from tpy.clock import Clock
from tpy.frontends.access import gate_of
from tpy.frontends.grpc.handlers import create_handlers
from tpy.frontends.grpc.options import GrpcFrontendOptions
from tpy.frontends.grpc.transport import BoundAddress, serve_grpc
from tpy.reloading import reloaded
from tpy.services import Services


async def serve_grpc_services(
    options: GrpcFrontendOptions,
    services: Services,
    clock: Clock,
    *,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the gRPC API until `stop` is set and what was in flight has been answered (at most `options.drain_timeout_s`).

    Listens on `inherited` when there are any, whose address belongs to whoever made them, else on that of the options.
    Reports the bound address as soon as connections are accepted. Raises Unavailable when the address cannot be bound and
    InvalidArgument for options that cannot be served. Cancelled: stops at once, calls are cancelled.
    """
    gate = None if options.services.auth is None else gate_of(options.services.auth)
    with nullcontext() if gate is None else reloaded(gate.reload):
        await _serve(options, services, clock, stop, inherited, task_status)


async def _serve(
    options: GrpcFrontendOptions,
    services: Services,
    clock: Clock,
    stop: trio.Event,
    inherited: Sequence[socket.socket],
    task_status: trio.TaskStatus[BoundAddress],
) -> None:
    async with trio.open_nursery() as calls:
        handlers = create_handlers(options.services, services, clock, nursery=calls, stop=stop)
        await serve_grpc(
            options,
            handlers,
            clock,
            deliveries=services.deliveries,
            stop=stop,
            inherited=inherited,
            task_status=task_status,
        )
        calls.cancel_scope.cancel()
