"""Answers of the REST port in TensorFlow Serving's form."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from tpy.errors import ErrorCode, TpyError
from tpy.frontends.http import codec
from tpy.frontends.http.codec.response import dump_json
from tpy.frontends.http.message import HttpReply, HttpRequest, headers_of, json_reply

_STATUS = {
    **codec.HTTP_STATUS,
    ErrorCode.UNKNOWN: HTTPStatus.INTERNAL_SERVER_ERROR,
    ErrorCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    ErrorCode.CANCELLED: 499,
}


def error_reply(error: TpyError) -> HttpReply:
    """The answer that reports `error`."""
    return document_reply({"error": error.message}, _STATUS[error.code], headers=headers_of(error))


def refusal_reply(status: int, text: str) -> HttpReply:
    """The answer to a request that HTTP itself does not allow, or that no route takes."""
    return document_reply({"error": f"Malformed request: {text}"}, status)


def document_reply(document: object, status: int = HTTPStatus.OK, *, headers: tuple[tuple[str, str], ...] = ()) -> HttpReply:
    """A document as JSON."""
    return json_reply(dump_json(document), status=status, headers=headers)


def body_reply(pieces: Iterable[bytes], request: HttpRequest) -> HttpReply:
    """A JSON document in pieces, compressed as far as the request asks for that."""
    parts: list[bytes | memoryview] = list(pieces)
    headers: tuple[tuple[str, str], ...] = ()
    accepted = request.fields.get(b"accept-encoding")
    encoding = "identity" if accepted is None else codec.choose_encoding(accepted.decode("latin-1"))
    if encoding != "identity":
        parts = [codec.compress(parts, encoding)]
        headers = (("Content-Encoding", encoding),)
    return HttpReply(parts=parts, content_length=sum(map(len, parts)), headers=headers)
