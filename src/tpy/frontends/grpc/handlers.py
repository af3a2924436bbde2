"""The table of the methods of the gRPC port."""

from __future__ import annotations

import trio

from tpy.clock import Clock
from tpy.frontends.grpc import control, health, reflection
from tpy.frontends.grpc.access import MetadataPolicy
from tpy.frontends.grpc.calls import CallParts
from tpy.frontends.grpc.infer import InferApi
from tpy.frontends.grpc.methods import service_handlers
from tpy.frontends.grpc.options import GrpcServiceOptions
from tpy.frontends.grpc.stream import StreamInferApi
from tpy.frontends.grpc.transport import Handlers, StreamHandler, UnaryHandler
from tpy.services import Services

_OWN_SERVICES = ("inference.GRPCInferenceService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection")


def create_handlers(
    options: GrpcServiceOptions,
    services: Services,
    clock: Clock,
    *,
    nursery: trio.Nursery,
    stop: trio.Event,
) -> Handlers:
    """All methods: inference, health, reflection. Raises InvalidArgument for options that cannot be served.

    `nursery` must outlive the port that serves the handlers: unary calls that wait have their tasks there, each cancelled with
    its call. `stop` is set when the server stops; streams then take no more requests and end once they are idle.
    """
    parts = CallParts(services, clock, MetadataPolicy(options), nursery=nursery, stop=stop)
    handlers: dict[str, UnaryHandler | StreamHandler] = {}
    inference, health_service, reflection_service = _OWN_SERVICES
    service = control.ControlService(services, parts.threads)
    handlers |= service_handlers(inference, service, parts, control.APIS, control.LARGE, control.CHANGING)
    handlers |= service_handlers(health_service, health.HealthService(services, _OWN_SERVICES, stop), parts, health.APIS)
    handlers |= service_handlers(reflection_service, reflection.ReflectionService(_OWN_SERVICES), parts, {})
    handlers[reflection.OLDER_PATH] = handlers[reflection.PATH]
    handlers[control.INFER_PATH] = UnaryHandler(InferApi(parts).handle)
    handlers[control.STREAM_INFER_PATH] = StreamHandler(StreamInferApi(parts).handle)
    return handlers
