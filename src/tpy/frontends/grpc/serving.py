"""Serves all services on one gRPC port.

The nursery tree of a port:

    serve_grpc_services
    +-- calls               tasks of unary calls that wait; other parts of a call need no task
        +-- serve_grpc      the transport: connections and streaming calls
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import nullcontext

import trio

from tpy._proto import POOL
from tpy.clock import Clock
from tpy.frontends.access import gate_of
from tpy.frontends.grpc.access import MetadataPolicy
from tpy.frontends.grpc.calls import INFER_PATH, OLDER_REFLECTION_PATH, OWN_SERVICES, CallParts
from tpy.frontends.grpc.infer import InferApi
from tpy.frontends.grpc.late import LateHandlers
from tpy.frontends.grpc.options import GrpcFrontendOptions, GrpcServiceOptions
from tpy.frontends.grpc.transport import BoundAddress, Handlers, UnaryHandler, serve_grpc
from tpy.reloading import reloaded
from tpy.services import Services


def create_handlers(
    options: GrpcServiceOptions,
    services: Services,
    clock: Clock,
    *,
    nursery: trio.Nursery,
    stop: trio.Event,
    late: bool = False,
) -> Handlers:
    """All methods: inference, health, reflection, rollouts. With `late` those but ModelInfer are imported for the first call of
    one of them. Raises InvalidArgument for options that cannot be served.

    `nursery` must outlive the port that serves the handlers: unary calls that wait have their tasks there, each cancelled with
    its call. `stop` is set when the server stops; streams then take no more requests and end once they are idle.
    """
    parts = CallParts(services, clock, MetadataPolicy(options), nursery=nursery, stop=stop)

    def load() -> Handlers:
        from tpy.frontends.grpc.own_services import own_handlers

        return own_handlers(parts)

    others = LateHandlers(load, nursery).by_path(_paths()) if late else load()
    return {**others, INFER_PATH: UnaryHandler(InferApi(parts).handle)}


def _paths() -> dict[str, bool]:
    """The paths of the services' methods, each with True if a call may have several responses."""
    described = [(name, method) for name in OWN_SERVICES for method in POOL.FindServiceByName(name).methods]
    paths = {f"/{name}/{method.name}": bool(method.server_streaming) for name, method in described}
    return {**paths, OLDER_REFLECTION_PATH: True}


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
        handlers = create_handlers(options.services, services, clock, nursery=calls, stop=stop, late=True)
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
