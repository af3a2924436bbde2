"""The content types that say where the JSON of a binary request ends, on platforms whose gateways drop headers."""

from __future__ import annotations

import msgspec

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.frontends.http.infer import InferEndpoint, infer
from tpy.frontends.http.message import HttpReply, HttpRequest

_LENGTH = "Inference-Header-Content-Length"
_ENCODINGS = (b"accept-encoding", b"content-encoding")
_LENGTH_MAX = 2**31 - 1


async def infer_with_type(
    endpoint: InferEndpoint,
    request: HttpRequest,
    model: str,
    version: str | None = None,
    *,
    type_prefix: str,
    protocol: str,
    keep_length: bool = False,
) -> HttpReply:
    """`infer`, where the content types of binary requests and answers are `type_prefix` and the length of the JSON. Nothing is
    compressed. With `keep_length` the answer has the header, too. Raises InvalidArgument, with Triton's texts, for a length that
    cannot be."""
    # Not in place: who observes the request has it, too.
    request.fields = {name: value for name, value in request.fields.items() if name not in _ENCODINGS}
    length = json_length(request.fields.get(b"content-type", b"").decode("latin-1"), len(request.body), type_prefix=type_prefix)
    if length is not None:
        request.fields[_LENGTH.lower().encode()] = b"%d" % length
    reply = await infer(endpoint, request, model, version, protocol=protocol)
    for name, value in reply.headers:
        if name == _LENGTH:
            return msgspec.structs.replace(
                reply, content_type=f"{type_prefix}{value}", headers=reply.headers if keep_length else ()
            )
    return reply


def json_length(content_type: str, body_length: int, *, type_prefix: str) -> int | None:
    """The length that a content type tells; None for another type. Raises InvalidArgument."""
    at = content_type.find(type_prefix)
    if at < 0:
        return None
    shown = echo(content_type)
    if at:
        raise InvalidArgument(f"expect MIME type for binary data starts with '{type_prefix}', got: {shown}")
    text = content_type[len(type_prefix) :]
    shown = echo(text)
    if not text.isascii() or not text.lstrip("+-").isdigit() or len(text) - len(text.lstrip("+-")) > 1:
        raise InvalidArgument(f"Unable to parse inference header size, got: {shown}")
    if len(text) > len(str(_LENGTH_MAX)) + 1 or abs(int(text)) > _LENGTH_MAX:
        raise InvalidArgument(f"Unable to parse inference header size, value is out of range, got: {shown}")
    if not 0 <= int(text) <= body_length:
        raise InvalidArgument(f"inference header size should be in range (0, {body_length}), got: {shown}")
    return int(text)
