"""Answers in MLflow's form. `error_code` is a name of its protocol."""

from __future__ import annotations

from typing import Final

from tpy.errors import TpyError
from tpy.frontends.http.codec import HTTP_STATUS
from tpy.frontends.http.codec.response import dump_json
from tpy.frontends.http.message import HttpReply, headers_of, json_reply

_CODES: Final = {
    400: "BAD_REQUEST",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "RESOURCE_DOES_NOT_EXIST",
    405: "ENDPOINT_NOT_FOUND",
    429: "REQUEST_LIMIT_EXCEEDED",
    501: "NOT_IMPLEMENTED",
    503: "TEMPORARILY_UNAVAILABLE",
}


def error_reply(error: TpyError) -> HttpReply:
    """The answer that reports `error`."""
    return _reply(HTTP_STATUS[error.code], error.message, headers_of(error))


def refusal_reply(status: int, text: str) -> HttpReply:
    """The answer to a request that HTTP itself does not allow, or that no route takes."""
    return _reply(status, text, ())


def type_reply(text: str) -> HttpReply:
    """The answer to a body of another type: 415, in plain text as MLflow's."""
    content = text.encode()
    return HttpReply(status=415, content_type="text/plain; charset=utf-8", parts=(content,), content_length=len(content))


def _reply(status: int, text: str, headers: tuple[tuple[str, str], ...]) -> HttpReply:
    code = _CODES.get(status, "BAD_REQUEST" if status < 500 else "INTERNAL_ERROR")
    return json_reply(dump_json({"error_code": code, "message": text}), status=status, headers=headers)
