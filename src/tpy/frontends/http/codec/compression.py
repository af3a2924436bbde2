"""Content codings of HTTP bodies: gzip and deflate, both ways (triton.md 1.9)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tpy.errors import Unsupported

Encoding = Literal["identity", "gzip", "deflate"]


def decompress(body: bytes | bytearray | memoryview, encoding: str, limit: int) -> bytearray:
    """`body` without its `Content-Encoding`; never more than `limit` bytes are produced.

    Raises Unsupported for another coding (text 21; the caller adds `Accept-Encoding: gzip, deflate` to the answer),
    InvalidArgument for a corrupt or cut-off body and for one larger than `limit` (text 23).
    """
    raise Unsupported("not there yet")


def choose_encoding(accept_encoding: str) -> Encoding:
    """The coding of a response for an `Accept-Encoding` header: the highest q among ours, the first listed on ties."""
    raise Unsupported("not there yet")


def compress(parts: Iterable[bytes | memoryview], encoding: Encoding) -> bytes:
    """The pieces of a body as one, compressed."""
    raise Unsupported("not there yet")
