"""Content codings of HTTP bodies: gzip and deflate, both ways."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import Literal

from tpy.errors import InvalidArgument, Unsupported
from tpy.units import KIB, MIB

Encoding = Literal["identity", "gzip", "deflate"]

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
"""The header of the data says which, as with Triton: clients mix them up."""

_WINDOW: dict[Encoding, int] = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_CHUNK_BYTES = 64 * KIB
"""Input is fed in pieces, because the decompressor copies what it has not consumed after each step."""

_STEP_BYTES = MIB
_OURS: tuple[Encoding, ...] = ("identity", "gzip", "deflate")


def decompress(body: bytes | bytearray | memoryview, encoding: str, limit: int) -> bytearray:
    """`body` without its `Content-Encoding`; never more than `limit` bytes are produced.

    Raises Unsupported for another coding (the caller adds `Accept-Encoding: gzip, deflate` to the answer),
    InvalidArgument for a body that is empty, corrupt, cut off, or larger than `limit` when decompressed.
    """
    coding = encoding.strip().lower()
    if coding in ("", "identity"):
        return body if isinstance(body, bytearray) else bytearray(body)
    if coding not in _OURS:
        raise Unsupported("Unsupported compression type")
    if not len(body):
        raise InvalidArgument("nothing to be decompressed")
    produced = bytearray()
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
    view = memoryview(body)
    at = 0
    while at < len(view) and not stream.eof:
        _inflate(stream, view[at : at + _CHUNK_BYTES], limit, produced)
        at += _CHUNK_BYTES
    if not stream.eof:
        raise InvalidArgument(f"failed to decompress the request body as {coding}: it is cut off")
    if stream.unused_data or at < len(view):
        raise InvalidArgument(f"failed to decompress the request body as {coding}: there are bytes after its end")
    return produced


def _inflate(stream: zlib._Decompress, chunk: memoryview, limit: int, produced: bytearray) -> None:
    """Decompress one piece of input onto `produced`, a bounded step at a time."""
    pending: memoryview | bytes = chunk
    while True:
        # One byte more than allowed is enough to know that it is too much.
        step_max = min(_STEP_BYTES, limit + 1 - len(produced))
        try:
            step = stream.decompress(pending, step_max)
        except zlib.error as error:
            raise InvalidArgument(f"failed to decompress the request body: {error}") from None
        produced += step
        if len(produced) > limit:
            raise InvalidArgument(
                f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. Use --http-max-input-size to "
                "increase the limit."
            )
        pending = stream.unconsumed_tail
        if stream.eof or (not pending and len(step) < step_max):
            return


def choose_encoding(accept_encoding: str) -> Encoding:
    """The coding of a response for an `Accept-Encoding` header: the highest q among ours, the first listed on ties.

    Codings that are unknown or whose q is not a number do not count; "identity" when no coding is left.
    """
    chosen: Encoding = "identity"
    chosen_weight = 0.0
    for item in accept_encoding.split(","):
        name, _, rest = item.partition(";")
        coding = name.strip().lower()
        weight = _weight(rest)
        for ours in _OURS:
            if coding == ours and weight > chosen_weight:
                chosen, chosen_weight = ours, weight
    return chosen


def _weight(parameters: str) -> float:
    for parameter in parameters.split(";"):
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if math.isfinite(weight) else 0.0
    return 1.0


def compress(parts: Iterable[bytes | memoryview], encoding: Encoding) -> bytes:
    """The pieces of a body as one, compressed."""
    if encoding == "identity":
        return b"".join(parts)
    stream = zlib.compressobj(wbits=_WINDOW[encoding])
    pieces = [stream.compress(part) for part in parts]
    pieces.append(stream.flush())
    return b"".join(pieces)
