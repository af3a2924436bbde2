"""The headers and trailers that we send. What recurs in every answer is apart from what varies: only the first is worth a place
in the client's header table."""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence

import msgspec
from grpclib.const import Status
from grpclib.metadata import encode_grpc_message

from tpy.frontends.grpc.transport.core.request_head import ACCEPTED_ENCODINGS, Encoding, Refused
from tpy.http2.header_blocks import Headers
from tpy.limits import GRPC_STATUS_MESSAGE_BYTES_MAX

_KEY = re.compile(r"[0-9a-z_.\-]+")
_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?|")
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


def refusal(refused: Refused) -> Fields:
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
    if not _VALUE.fullmatch(value):
        raise ValueError(f"the value of metadata {key!r} has characters that are not printable ASCII")
    return key.encode(), value.encode()
