"""The parts that all calls of a gRPC port share, and the failure of a call."""

from __future__ import annotations

import trio
from grpclib.const import Status

from tpy import limits, unexpected
from tpy.clock import Clock
from tpy.errors import ErrorCode, TooManyRequests, TpyError
from tpy.frontends.grpc.access import MetadataPolicy
from tpy.frontends.grpc.transport import DEADLINE_TEXT, CallContext
from tpy.frontends.shared_memory import TensorResolver
from tpy.messages import RequestRecord
from tpy.services import Services

GRPC_STATUS: dict[ErrorCode, Status] = {
    ErrorCode.UNKNOWN: Status.UNKNOWN,
    ErrorCode.INTERNAL: Status.INTERNAL,
    ErrorCode.NOT_FOUND: Status.NOT_FOUND,
    ErrorCode.INVALID_ARG: Status.INVALID_ARGUMENT,
    ErrorCode.UNAVAILABLE: Status.UNAVAILABLE,
    ErrorCode.UNSUPPORTED: Status.UNIMPLEMENTED,
    ErrorCode.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    ErrorCode.CANCELLED: Status.CANCELLED,
    ErrorCode.UNAUTHENTICATED: Status.UNAUTHENTICATED,
    ErrorCode.PERMISSION_DENIED: Status.PERMISSION_DENIED,
    ErrorCode.RESOURCE_EXHAUSTED: Status.RESOURCE_EXHAUSTED,
    ErrorCode.FORBIDDEN: Status.UNAVAILABLE,  # as Triton answers for its restricted protocols
}
"""Total over ErrorCode (a test checks it)."""


INFERENCE = "inference"
"""The category of restricted protocols that both inference methods belong to."""

OWN_SERVICES = (
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "tpy.rollout.v1.RolloutService",
)
INFER_PATH = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
REFLECTION_PATH = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
OLDER_REFLECTION_PATH = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
"""The same messages under the name that older clients ask for."""


_TRACE_METADATA = frozenset(("traceparent", "tracestate", "user-agent"))
"""The metadata that observers of requests are told."""


class CallParts:
    """The parts that all calls of one gRPC port share. `nursery` outlives the port: tasks that serve unary calls run in it.
    `stop` is set when the server stops; calls that would not end by themselves then end."""

    def __init__(
        self,
        services: Services,
        clock: Clock,
        policy: MetadataPolicy,
        *,
        nursery: trio.Nursery,
        stop: trio.Event,
    ) -> None:
        self.services = services
        self.clock = clock
        self.policy = policy
        self.nursery = nursery
        self.stop = stop
        self.threads = trio.CapacityLimiter(limits.GRPC_CODEC_THREADS_MAX)
        regions = services.shared_memory.regions
        self.tensors = TensorResolver(regions)
        self.tensors_inline = TensorResolver(regions, inline=True)


def open_record(parts: CallParts, call: CallContext, protocol: str, message_bytes: int, model: str) -> RequestRecord | None:
    """A record of an inference request over gRPC, `model` "" when it cannot be parsed; None when nobody observes."""
    observers = parts.services.observers
    active = observers.active
    if not active:
        return None
    headers = {key: value for key, value in call.metadata if key in _TRACE_METADATA and isinstance(value, str)}
    return observers.open(
        protocol,
        model=model,
        peer=call.peer,
        headers=headers,
        received_ns=parts.clock.now_ns(),
        request_bytes=message_bytes,
        active=active,
    )


def count_refusal(parts: CallParts, error: TpyError, *, submitted: bool) -> None:
    """Count a request that was refused with this error before a model had it; models count the others."""
    if not submitted or isinstance(error, TooManyRequests):
        parts.services.refusals.count(error.code.name)


def fail_call(call: CallContext, error: TpyError) -> None:
    """End a call with the status of `error`."""
    trailing = () if error.wait_s is None else (("retry-after", str(error.wait_s)),)
    call.fail(GRPC_STATUS[error.code], error.message, trailing)


def fail_inference(call: CallContext, error: TpyError, now_ns: int) -> None:
    """The same for a request that has the call's deadline: what fails after it is told as that. The engine may notice the
    deadline before the transport does, and calls it a time-out of the request, UNAVAILABLE, which clients send again."""
    if call.deadline_ns is not None and now_ns >= call.deadline_ns:
        call.fail(Status.DEADLINE_EXCEEDED, DEADLINE_TEXT)
    else:
        fail_call(call, error)


def unexpected_error(path: str) -> TpyError:
    """The error for the exception being handled."""
    return unexpected.unexpected_error("gRPC call failed unexpectedly", path=path)
