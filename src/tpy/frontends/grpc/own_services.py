"""The services of the port: every method but ModelInfer, which is in infer.py."""

from __future__ import annotations

from tpy.frontends.grpc import control, health, reflection, rollouts
from tpy.frontends.grpc.calls import OLDER_REFLECTION_PATH, OWN_SERVICES, REFLECTION_PATH, STREAM_INFER_PATH, CallParts
from tpy.frontends.grpc.methods import service_handlers
from tpy.frontends.grpc.stream import StreamInferApi
from tpy.frontends.grpc.transport import Handlers, StreamHandler, UnaryHandler


def own_handlers(parts: CallParts) -> Handlers:
    """The handlers of all of them, by path."""
    services = parts.services
    inference, health_service, reflection_service, rollout_service = OWN_SERVICES
    handlers: dict[str, UnaryHandler | StreamHandler] = {}
    service = control.ControlService(services, parts.threads)
    handlers |= service_handlers(inference, service, parts, control.APIS, control.LARGE, control.CHANGING)
    handlers |= service_handlers(health_service, health.HealthService(services, OWN_SERVICES, parts.stop), parts, health.APIS)
    handlers |= service_handlers(reflection_service, reflection.ReflectionService(OWN_SERVICES), parts, {})
    handlers |= service_handlers(
        rollout_service, rollouts.RolloutService(services), parts, rollouts.APIS, changing=rollouts.CHANGING
    )
    handlers[OLDER_REFLECTION_PATH] = handlers[REFLECTION_PATH]
    handlers[STREAM_INFER_PATH] = StreamHandler(StreamInferApi(parts).handle)
    return handlers
