"""Content codings: bounded, exact, and clear about what is wrong."""

from __future__ import annotations

import gzip
import zlib

import pytest

from tpy.errors import InvalidArgument, Unsupported
from tpy.frontends.http.codec import choose_encoding, decompress

ZEROS = b"\x00" * 10_000_000


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP"])
@pytest.mark.parametrize("packed", [gzip.compress(ZEROS, mtime=0), zlib.compress(ZEROS)])
def test_limit(encoding: str, packed: bytes) -> None:
    assert decompress(packed, encoding, len(ZEROS)) == ZEROS
    with pytest.raises(InvalidArgument, match="Decompressed data size exceeds the maximum allowed value of 9999999 bytes"):
        decompress(packed, encoding, len(ZEROS) - 1)


def test_many_chunks_of_input() -> None:
    noise = b"".join(zlib.crc32(bytes([i % 256, i // 256])).to_bytes(4, "little") for i in range(60_000))
    assert decompress(memoryview(gzip.compress(noise)), "gzip", len(noise)) == noise


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "nothing to be decompressed"),
        (b"no gzip", "failed to decompress the request body"),
        (gzip.compress(b"abc" * 1000, mtime=0)[:-5], "it is cut off"),
        (gzip.compress(b"abc", mtime=0)[:-8] + b"\x00" * 8, "incorrect data check"),
        (gzip.compress(b"abc", mtime=0) + b"x", "there are bytes after its end"),
        (gzip.compress(b"abc", mtime=0) * 2, "there are bytes after its end"),
    ],
)
def test_broken_bodies(body: bytes, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        decompress(body, "gzip", 1_000_000)


def test_unknown_coding() -> None:
    with pytest.raises(Unsupported, match=r"^Unsupported compression type$"):
        decompress(b"x", "br", 10)


def test_identity_takes_the_body_as_it_is() -> None:
    body = bytearray(b"abc")
    assert decompress(body, "identity", 10) is body


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        ("", "identity"),
        ("gzip", "gzip"),
        ("gzip; q=0.5, deflate; q=0.7", "deflate"),
        ("GZIP", "gzip"),
        ("gzip;q=0", "identity"),
        ("gzip;q=nan, deflate", "deflate"),
        ("gzip, deflate, br", "gzip"),
        ("identity;q=0.5, gzip;q=0.5", "identity"),
    ],
)
def test_choice(header: str, chosen: str) -> None:
    assert choose_encoding(header) == chosen
