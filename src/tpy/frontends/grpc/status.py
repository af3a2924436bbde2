"""ErrorCode to gRPC status."""

from __future__ import annotations

from grpclib.const import Status

from tpy.errors import ErrorCode

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
