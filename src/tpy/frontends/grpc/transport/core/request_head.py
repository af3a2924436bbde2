"""RequestHead: what the headers of a call say, with gRPC's own rules for them."""

from __future__ import annotations

import binascii
import re
from typing import Literal

import msgspec
from grpclib.const import Status

from tpy.echo import echo
from tpy.frontends.grpc.transport.core.header_rules import check_request
from tpy.http2.header_blocks import Headers
from tpy.limits import GRPC_HEADER_VALUES_MAX
from tpy.units import NS_PER_MS, NS_PER_S, NS_PER_US

Encoding = Literal["identity", "gzip", "deflate"]

ACCEPTED_ENCODINGS = "identity, deflate, gzip"
_ENCODINGS: dict[bytes, Encoding] = {b"identity": "identity", b"gzip": "gzip", b"deflate": "deflate"}
_CONTENT_TYPE = re.compile(rb"application/grpc([+;].*)?", re.DOTALL)
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNIT_NS = {b"H": 3600 * NS_PER_S, b"M": 60 * NS_PER_S, b"S": NS_PER_S, b"m": NS_PER_MS, b"u": NS_PER_US, b"n": 1}
_NOT_METADATA = frozenset(
    {b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"grpc-message-type"}
)
_FIELD_OVERHEAD_BYTES = 32
"""HTTP/2's overhead for each field when it counts a header list."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The call ends before it begins. `http_status` other than 200 is for peers that do not speak gRPC."""

    status: Status
    message: str
    http_status: int = 200


class RequestHead(msgspec.Struct, frozen=True, kw_only=True):
    """`timeout_ns`: `grpc-timeout`. `encoding`: of compressed request messages. `reply_encoding`: the best compression of
    responses that the client accepts. `refused`: answer with this, and read nothing else here."""

    path: str = ""
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    timeout_ns: int | None = None
    encoding: Encoding = "identity"
    reply_encoding: Encoding = "identity"
    content_length: int | None = None
    refused: Refused | None = None


def parse_request_head(headers: Headers, header_bytes_max: int) -> RequestHead:
    """The head of a call. Raises MalformedHeaders for what is no request by HTTP/2's rules; what is one, but cannot be a call,
    becomes `refused`."""
    pseudo, fields, content_length = check_request(headers)
    path = pseudo.get(b":path", b"").decode("latin-1")
    try:
        size = sum(len(name) + len(value) + _FIELD_OVERHEAD_BYTES for name, value in headers)
        if size > header_bytes_max:
            raise _Refusal(
                Status.RESOURCE_EXHAUSTED, f"received metadata of {size} bytes, at most {header_bytes_max} are accepted"
            )
        _check_http(pseudo, fields)
        return RequestHead(
            path=path,
            metadata=_metadata(fields),
            timeout_ns=_timeout_ns(fields),
            encoding=_encoding(fields),
            reply_encoding=_reply_encoding(fields),
            content_length=content_length,
        )
    except _Refusal as refusal:
        return RequestHead(path=path, content_length=content_length, refused=refusal.refused)


class _Refusal(Exception):
    def __init__(self, status: Status, message: str, http_status: int = 200) -> None:
        super().__init__(message)
        self.refused = Refused(status=status, message=message, http_status=http_status)


def _check_http(pseudo: dict[bytes, bytes], fields: Headers) -> None:
    method = pseudo[b":method"]
    if method != b"POST":
        raise _Refusal(Status.UNKNOWN, f"gRPC calls use the method POST, got {_text(method)}", 405)
    content_type = _one(fields, b"content-type")
    if content_type is None:
        raise _Refusal(Status.UNKNOWN, "the content-type header is missing, expected application/grpc", 415)
    if not _CONTENT_TYPE.fullmatch(content_type):
        raise _Refusal(Status.UNKNOWN, f"content-type {_text(content_type)} is not served, expected application/grpc", 415)
    if _one(fields, b"te") is None:
        raise _Refusal(Status.UNKNOWN, "the header 'te: trailers' is missing", 400)


def _timeout_ns(fields: Headers) -> int | None:
    value = _one(fields, b"grpc-timeout")
    if value is None:
        return None
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise _Refusal(Status.INTERNAL, f"malformed grpc-timeout: {_text(value)}")
    return int(match[1]) * _UNIT_NS[match[2]]


def _encoding(fields: Headers) -> Encoding:
    value = _one(fields, b"grpc-encoding")
    if value is None:
        return "identity"
    encoding = _ENCODINGS.get(value)
    if encoding is None:
        raise _Refusal(
            Status.UNIMPLEMENTED, f"grpc-encoding {_text(value)} is not supported, expected one of {ACCEPTED_ENCODINGS}"
        )
    return encoding


def _reply_encoding(fields: Headers) -> Encoding:
    accepted = {
        item.strip()
        for name, value in fields
        if name == b"grpc-accept-encoding"
        for item in value.split(b",", GRPC_HEADER_VALUES_MAX)
    }
    for encoding in (b"gzip", b"deflate"):
        if encoding in accepted:
            return _ENCODINGS[encoding]
    return "identity"


def _metadata(fields: Headers) -> tuple[tuple[str, str | bytes], ...]:
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name in _NOT_METADATA:
            continue
        key = name.decode("latin-1")
        if key.endswith("-bin"):
            # Repeated binary fields may have been joined with commas on the way.
            if value.count(b",") >= GRPC_HEADER_VALUES_MAX:
                raise _Refusal(
                    Status.RESOURCE_EXHAUSTED,
                    f"metadata {echo(key)} has more than {GRPC_HEADER_VALUES_MAX} values, at most as many are accepted",
                )
            metadata += [(key, _binary(key, item)) for item in value.split(b",")]
        else:
            metadata.append((key, value.decode("latin-1")))
    return tuple(metadata)


def _binary(key: str, value: bytes) -> bytes:
    bare = value.strip().rstrip(b"=")
    try:
        return binascii.a2b_base64(bare + b"=" * (-len(bare) % 4), strict_mode=True)
    except binascii.Error:
        raise _Refusal(Status.INTERNAL, f"the value of metadata {echo(key)} is not base64") from None


def _one(fields: Headers, wanted: bytes) -> bytes | None:
    return next((value for name, value in fields if name == wanted), None)


def _text(value: bytes) -> str:
    return repr(value[:128].decode("latin-1"))
