"""A call of gRPC over HTTP/2: what its headers say and must be, the messages within its stream (a flag, four bytes of length, the
message), and the headers and trailers of its answer. Of these, what recurs in every answer is apart from what varies: only the
first is worth a place in the client's header table."""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from typing import Literal

import msgspec
from grpclib.const import Status
from grpclib.metadata import encode_grpc_message

from tpy.echo import echo
from tpy.http2.header_blocks import Headers
from tpy.limits import GRPC_HEADER_VALUES_MAX, GRPC_STATUS_MESSAGE_BYTES_MAX
from tpy.units import NS_PER_MS, NS_PER_S, NS_PER_US

_NAME = re.compile(rb"[!-9;-@\[-~]+")
"""Visible, no capital letters, no colon."""

_PSEUDO_VALUE = re.compile(rb"(?![ \t])[^\0\r\n]*(?<![ \t])", re.DOTALL)
_VALUE = re.compile(rb"[^\0\r\n]*", re.DOTALL)
"""Spaces at its ends, which RFC 9113 forbids, too: gRPC's own libraries send them, and take them."""

_REQUEST_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTION = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})


class MalformedHeaders(Exception):
    """The text says which rule was broken."""


def _check_request(headers: Headers) -> tuple[dict[bytes, bytes], Headers]:
    """(pseudo-header fields, the other fields) of a request. Raises MalformedHeaders."""
    pseudo: dict[bytes, bytes] = {}
    count = 0
    for name, value in headers:
        if not name.startswith(b":"):
            break
        if name not in _REQUEST_PSEUDO:
            raise MalformedHeaders(f"unknown pseudo-header field {_shown(name)}")
        if name in pseudo:
            raise MalformedHeaders(f"{_shown(name)} occurs twice")
        if not _PSEUDO_VALUE.fullmatch(value):
            raise MalformedHeaders(f"the value of {_shown(name)} has characters that are not allowed")
        pseudo[name] = value
        count += 1
    regular = headers[count:]
    check_fields(regular)
    _check_pseudo(pseudo)
    return pseudo, regular


def check_fields(fields: Headers) -> None:
    """Fields other than pseudo-header fields, trailers among them. Raises MalformedHeaders."""
    for name, value in fields:
        if not _NAME.fullmatch(name):
            where = "pseudo-header field where there must be none" if name.startswith(b":") else "field name"
            raise MalformedHeaders(f"{where}: {_shown(name)}")
        if not _VALUE.fullmatch(value):
            raise MalformedHeaders(f"the value of {_shown(name)} has characters that are not allowed")
        if name in _OF_CONNECTION or (name == b"te" and value != b"trailers"):
            raise MalformedHeaders(f"{_shown(name)} is of HTTP/1.1")


def _check_pseudo(pseudo: dict[bytes, bytes]) -> None:
    if b":method" not in pseudo:
        raise MalformedHeaders(":method is missing")
    if pseudo[b":method"] == b"CONNECT":
        if b":scheme" in pseudo or b":path" in pseudo:
            raise MalformedHeaders("CONNECT has neither :scheme nor :path")
        return
    for name in (b":scheme", b":path"):
        if not pseudo.get(name):
            raise MalformedHeaders(f"{_shown(name)} is missing")


def _content_length(fields: Headers) -> int:
    found = {value for name, value in fields if name == b"content-length"}
    if len(found) > 1:
        raise MalformedHeaders("content-length occurs twice")
    text = found.pop()
    if not text.isdigit() or len(text) > 18:
        raise MalformedHeaders("content-length is not a number")
    return int(text)


def _shown(name: bytes) -> str:
    return repr(name[:64].decode("latin-1"))


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


class RefusedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The call ends before it begins. `http_status` other than 200 is for peers that do not speak gRPC."""

    status: Status
    message: str
    http_status: int = 200


class RequestHead(msgspec.Struct, frozen=True, kw_only=True):
    """`timeout_ns`: `grpc-timeout`. `encoding`: of compressed request messages. `reply_encoding`: the best compression of
    responses that the client accepts. `load_format`: the form in which it wants to be told the server's load. `refused`: answer
    with this, and read nothing else here."""

    path: str = ""
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    timeout_ns: int | None = None
    encoding: Encoding = "identity"
    reply_encoding: Encoding = "identity"
    load_format: str = ""
    content_length: int | None = None
    refused: RefusedCall | None = None


def parse_request_head(headers: Headers, header_bytes_max: int) -> RequestHead:
    """The head of a call. Raises MalformedHeaders for what is not a request by HTTP/2's rules; a request that cannot be a call
    becomes `refused`."""
    pseudo, fields = _check_request(headers)
    first = dict(reversed(fields))  # of several fields with a name, the first
    content_length = _content_length(fields) if b"content-length" in first else None
    path = pseudo.get(b":path", b"").decode("latin-1")
    try:
        size = _FIELD_OVERHEAD_BYTES * len(headers)
        for name, value in headers:
            size += len(name) + len(value)
        if size > header_bytes_max:
            raise _Refusal(
                Status.RESOURCE_EXHAUSTED, f"received metadata of {size} bytes, at most {header_bytes_max} are accepted"
            )
        _check_http(pseudo, first)
        return RequestHead(
            path=path,
            metadata=_metadata(fields),
            timeout_ns=_timeout_ns(first[b"grpc-timeout"]) if b"grpc-timeout" in first else None,
            encoding=_encoding(first[b"grpc-encoding"]) if b"grpc-encoding" in first else "identity",
            reply_encoding=_reply_encoding(fields) if b"grpc-accept-encoding" in first else "identity",
            load_format=first.get(b"endpoint-load-metrics-format", b"").decode("latin-1"),
            content_length=content_length,
        )
    except _Refusal as refusal:
        return RequestHead(path=path, content_length=content_length, refused=refusal.refused)


class _Refusal(Exception):
    def __init__(self, status: Status, message: str, http_status: int = 200) -> None:
        super().__init__(message)
        self.refused = RefusedCall(status=status, message=message, http_status=http_status)


def _check_http(pseudo: dict[bytes, bytes], first: dict[bytes, bytes]) -> None:
    method = pseudo[b":method"]
    if method != b"POST":
        raise _Refusal(Status.UNKNOWN, f"gRPC calls use the method POST, got {_text(method)}", 405)
    content_type = first.get(b"content-type")
    if content_type is None:
        raise _Refusal(Status.UNKNOWN, "the content-type header is missing, expected application/grpc", 415)
    if not _CONTENT_TYPE.fullmatch(content_type):
        raise _Refusal(Status.UNKNOWN, f"content-type {_text(content_type)} is not served, expected application/grpc", 415)
    if b"te" not in first:
        raise _Refusal(Status.UNKNOWN, "the header 'te: trailers' is missing", 400)


def _timeout_ns(value: bytes) -> int:
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise _Refusal(Status.INTERNAL, f"malformed grpc-timeout: {_text(value)}")
    return int(match[1]) * _UNIT_NS[match[2]]


def _encoding(value: bytes) -> Encoding:
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


def _text(value: bytes) -> str:
    return repr(value[:128].decode("latin-1"))


PREFIX_BYTES = 5

Message = tuple[bool, memoryview]
"""(whether it is compressed, its bytes)."""


class FramingFault(Exception):
    """The bytes of a stream are not messages, or too long ones. The call ends with `status`."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def prefix(length: int, *, compressed: bool) -> bytes:
    """Returns the prefix of a message."""
    return (b"\1" if compressed else b"\0") + length.to_bytes(4, "big")


def whole_message(data: memoryview, bytes_max: int) -> memoryview | None:
    """The message in `data` if that is one, not compressed and no longer than allowed, and nothing else; else None: read it with
    a MessageReader."""
    size = len(data) - PREFIX_BYTES
    if not 0 <= size <= bytes_max or data[:PREFIX_BYTES] != b"\0" + size.to_bytes(4, "big"):
        return None
    return data[PREFIX_BYTES:]


class MessageReader:
    """Cuts what arrives into messages. A message that comes in one piece is a view on that piece; one that comes in several is
    copied once, into a buffer that grows with what has arrived, never with what was announced."""

    __slots__ = ("_body", "_body_length", "_bytes_max", "_compressed", "_prefix")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._prefix = b""
        self._body: bytearray | None = None
        self._body_length = 0
        self._compressed = False

    @property
    def is_within_message(self) -> bool:
        """True if a message has begun that is not complete."""
        return self._body is not None or bool(self._prefix)

    def feed(self, data: memoryview) -> list[Message]:
        """The messages that `data` completes. Raises FramingFault; the reader is of no use then."""
        return self.cut(data, len(data))[0]

    def cut(self, data: memoryview, count_max: int) -> tuple[list[Message], int]:
        """The messages that `data` completes, `count_max` at most, and how many of its bytes are taken. Raises as `feed`."""
        messages: list[Message] = []
        at, end = 0, len(data)
        while at < end and len(messages) < count_max:
            body = self._body
            if body is None:
                taken = self._prefix + data[at : at + PREFIX_BYTES - len(self._prefix)]
                at += len(taken) - len(self._prefix)
                if len(taken) < PREFIX_BYTES:
                    self._prefix = taken
                    break
                self._prefix = b""
                length = self._begin(taken)
                if end - at >= length:
                    messages.append((self._compressed, data[at : at + length]))
                    at += length
                    continue
                self._body_length = length
                body = self._body = bytearray()
            piece = data[at : at + self._body_length - len(body)]
            try:
                body += piece
            except MemoryError:
                raise FramingFault(Status.UNAVAILABLE, "the server has no memory for this message") from None
            at += len(piece)
            if len(body) == self._body_length:
                messages.append((self._compressed, memoryview(body)))
                self._body = None
        return messages, at

    def _begin(self, taken: bytes) -> int:
        flag = taken[0]
        if flag > 1:
            raise FramingFault(Status.INTERNAL, f"a message begins with the flag {flag}, expected 0 or 1 (compressed)")
        length = int.from_bytes(taken[1:], "big")
        if length > self._bytes_max:
            raise FramingFault(Status.RESOURCE_EXHAUSTED, f"Received message larger than max ({length} vs. {self._bytes_max})")
        self._compressed = flag == 1
        return length


_KEY = re.compile(r"[0-9a-z_.\-]+")
_SENT_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?|")
_RESERVED = frozenset({"te", "content-type", "user-agent", "content-length", "connection", "transfer-encoding", "upgrade"})


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """One header block to be: `constant` first, then `varying`."""

    constant: Headers
    varying: Headers = ()


_BASE: Headers = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", ACCEPTED_ENCODINGS.encode()),
)
RESPONSE = Fields(constant=_BASE)
_COMPRESSED = {
    encoding: Fields(constant=(*_BASE, (b"grpc-encoding", encoding.encode()))) for encoding in ("gzip", "deflate", "identity")
}
_STATUS: dict[Status, Headers] = {status: ((b"grpc-status", b"%d" % status.value),) for status in Status}
OK = Fields(constant=_STATUS[Status.OK])


def response_headers(encoding: Encoding) -> Fields:
    """Before the first message; `encoding` of those messages that are compressed."""
    return RESPONSE if encoding == "identity" else _COMPRESSED[encoding]


def trailers(status: Status, message: str, metadata: Sequence[tuple[str, str | bytes]]) -> Fields:
    """Behind the last message. Raises ValueError for metadata that cannot be sent."""
    if status is Status.OK and not metadata:
        return OK
    return Fields(constant=_STATUS[status], varying=_varying(status, message, metadata))


def trailers_only(status: Status, message: str, metadata: Sequence[tuple[str, str | bytes]]) -> Fields:
    """Headers and trailers in one, for an answer without messages. Raises ValueError as `trailers`."""
    return Fields(constant=(*_BASE, *_STATUS[status]), varying=_varying(status, message, metadata))


def refusal(refused: RefusedCall) -> Fields:
    """The answer to what did not become a call."""
    if refused.http_status == 200:
        return trailers_only(refused.status, refused.message, ())
    status = ((b":status", b"%d" % refused.http_status), *_STATUS[refused.status])
    return Fields(constant=(), varying=(*status, *_varying(refused.status, refused.message, ())))


def _varying(status: Status, message: str, metadata: Sequence[tuple[str, str | bytes]]) -> Headers:
    fields: list[tuple[bytes, bytes]] = []
    if status is not Status.OK and message:
        fields.append((b"grpc-message", _encoded_message(message)))
    fields += [_encoded(key, value) for key, value in metadata]
    return tuple(fields)


def _encoded_message(message: str) -> bytes:
    encoded = encode_grpc_message(message)
    while len(encoded) > GRPC_STATUS_MESSAGE_BYTES_MAX:
        # Percent-encoding makes up to three bytes of each; cutting the text, not its encoding, keeps characters whole.
        keep = len(message) * GRPC_STATUS_MESSAGE_BYTES_MAX // len(encoded)
        message = message[: max(0, min(keep, len(message) - 1) - 3)]
        encoded = encode_grpc_message(message + "...")
    return encoded.encode("ascii")


def _encoded(key: str, value: str | bytes) -> tuple[bytes, bytes]:
    if not _KEY.fullmatch(key) or key.startswith("grpc-") or key in _RESERVED:
        raise ValueError(f"{key!r} cannot be a key of trailing metadata")
    if isinstance(value, bytes):
        if not key.endswith("-bin"):
            raise ValueError(f"metadata {key!r} has a value of bytes, for which its key must end in '-bin'")
        return key.encode(), binascii.b2a_base64(value, newline=False).rstrip(b"=")
    if key.endswith("-bin"):
        raise ValueError(f"metadata {key!r} needs a value of bytes, got text")
    if not _SENT_VALUE.fullmatch(value):
        raise ValueError(f"the value of metadata {key!r} has characters that are not printable ASCII")
    return key.encode(), value.encode()
