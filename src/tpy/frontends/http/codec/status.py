"""ErrorCode to HTTP status.

Triton answers 500 for a request whose JSON has the wrong types or lacks a member, because its JSON reader reports them as
internal errors. They are the caller's fault, so our parser raises InvalidArgument for them and they are 400 here.
"""

from __future__ import annotations

from tpy.errors import ErrorCode

HTTP_STATUS: dict[ErrorCode, int] = {
    ErrorCode.UNKNOWN: 400,
    ErrorCode.INTERNAL: 500,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.INVALID_ARG: 400,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.ALREADY_EXISTS: 400,
    ErrorCode.CANCELLED: 400,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.PERMISSION_DENIED: 403,
    ErrorCode.RESOURCE_EXHAUSTED: 429,
}
"""Total over ErrorCode (a test checks it)."""
