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

from tpy.clock import Clock
from tpy.frontends.access import gate_of
from tpy.frontends.grpc import control, health, reflection, rollouts
from tpy.frontends.grpc.access import MetadataPolicy
from tpy.frontends.grpc.calls import CallParts
from tpy.frontends.grpc.infer import InferApi
from tpy.frontends.grpc.methods import service_handlers
from tpy.frontends.grpc.options import GrpcFrontendOptions, GrpcServiceOptions
from tpy.frontends.grpc.stream import StreamInferApi
from tpy.frontends.grpc.transport import BoundAddress, Handlers, StreamHandler, UnaryHandler, serve_grpc
from tpy.reloading import reloaded
from tpy.services import Services

_OWN_SERVICES = (
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "tpy.rollout.v1.RolloutService",
)


def create_handlers(
    options: GrpcServiceOptions,
    services: Services,
    clock: Clock,
    *,
    nursery: trio.Nursery,
    stop: trio.Event,
) -> Handlers:
    """All methods: inference, health, reflection, rollouts. Raises InvalidArgument for options that cannot be served.

    `nursery` must outlive the port that serves the handlers: unary calls that wait have their tasks there, each cancelled with
    its call. `stop` is set when the server stops; streams then take no more requests and end once they are idle.
    """
    parts = CallParts(services, clock, MetadataPolicy(options), nursery=nursery, stop=stop)
    handlers: dict[str, UnaryHandler | StreamHandler] = {}
    inference, health_service, reflection_service, rollout_service = _OWN_SERVICES
    service = control.ControlService(services, parts.threads)
    handlers |= service_handlers(inference, service, parts, control.APIS, control.LARGE, control.CHANGING)
    handlers |= service_handlers(health_service, health.HealthService(services, _OWN_SERVICES, stop), parts, health.APIS)
    handlers |= service_handlers(reflection_service, reflection.ReflectionService(_OWN_SERVICES), parts, {})
    handlers |= service_handlers(
        rollout_service, rollouts.RolloutService(services), parts, rollouts.APIS, changing=rollouts.CHANGING
    )
    handlers[reflection.OLDER_PATH] = handlers[reflection.PATH]
    handlers[control.INFER_PATH] = UnaryHandler(InferApi(parts).handle)
    handlers[control.STREAM_INFER_PATH] = StreamHandler(StreamInferApi(parts).handle)
    return handlers


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
