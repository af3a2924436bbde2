"""The implementation of the gRPC port in the table.

The nursery tree of a port:

    serve
    +-- calls               a task for each call
        +-- serve_grpc      the transport
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import msgspec
import trio

from tpy.clock import Clock
from tpy.errors import InvalidArgument
from tpy.flag import Value, read_values
from tpy.frontends.access import gate_of
from tpy.frontends.grpc import health
from tpy.frontends.grpc.access import MetadataPolicy
from tpy.frontends.grpc.calls import CallParts
from tpy.frontends.grpc.frontend import read_options as read_grpc_options
from tpy.frontends.grpc.methods import service_handlers
from tpy.frontends.grpc.options import GrpcFrontendOptions
from tpy.frontends.grpc.transport import BoundAddress, StreamHandler, UnaryHandler, serve_grpc
from tpy.reloading import reloaded
from tpy.services import Services
from tpy_platforms.tensorflow_serving.calls import MODEL_SERVICE, PREDICTION_SERVICE, ServingCalls

Options = GrpcFrontendOptions

_HEALTH = "grpc.health.v1.Health"


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    grpc_address: str
    tensorflow_serving_grpc_port: int


def read_options(values: Mapping[str, Value]) -> GrpcFrontendOptions:
    """See `tpy.frontends.table.Implementation`. All but the port is gRPC's."""
    v = read_values(values, _Values)
    if v.grpc_address.startswith("unix:"):
        raise InvalidArgument("--grpc-address: expected an address, as gRPC has one Unix socket for itself")
    return msgspec.structs.replace(read_grpc_options(values), port=v.tensorflow_serving_grpc_port, reuse_port=False)


async def serve(
    options: GrpcFrontendOptions,
    services: Services,
    clock: Clock,
    /,
    *,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """See `tpy.frontends.table.Serve`."""
    auth = options.services.auth
    with nullcontext() if auth is None else reloaded(gate_of(auth).reload):
        async with trio.open_nursery() as calls:
            parts = CallParts(services, clock, MetadataPolicy(options.services), nursery=calls, stop=stop)
            handlers: dict[str, UnaryHandler | StreamHandler] = {**ServingCalls(parts).handlers()}
            own = (PREDICTION_SERVICE, MODEL_SERVICE, _HEALTH)
            handlers |= service_handlers(_HEALTH, health.HealthService(services, own, stop), parts, health.APIS)
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
