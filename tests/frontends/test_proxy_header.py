"""The header of the PROXY protocol: whose a connection is, what is none, and that nothing behind it is read."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy.frontends.core.proxy_header import ProxyHeader, ProxyHeaderError
from tpy.limits import PROXY_HEADER_BYTES_MAX

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FOUR = socket.inet_aton("192.0.2.7") + socket.inet_aton("10.0.0.1") + struct.pack("!HH", 50000, 8000)
SIX = socket.inet_pton(socket.AF_INET6, "2001:db8::7") + bytes(16) + struct.pack("!HH", 50001, 8000)


def binary(command: int, family: int, content: bytes) -> bytes:
    return SIGNATURE + bytes([command, family]) + struct.pack("!H", len(content)) + content


def read(data: bytes, pieces: int = 1_000_000) -> tuple[tuple[str, int] | None, bytes]:
    """The source, and what is left for the protocol behind."""
    header = ProxyHeader()
    while header.needed:
        piece = data[: min(header.needed, pieces)]
        assert piece, "it waits for more"
        data = data[len(piece) :]
        header.feed(piece)
    return header.source, data


@pytest.mark.parametrize(
    ("header", "source"),
    [
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 50000 8000\r\n", ("192.0.2.7", 50000)),
        (b"PROXY TCP6 2001:db8::7 ::1 50001 8000\r\n", ("2001:db8::7", 50001)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
        (binary(0x21, 0x11, FOUR), ("192.0.2.7", 50000)),
        (binary(0x21, 0x11, FOUR + b"\x03\x00\x04abcd" * 100), ("192.0.2.7", 50000)),
        (binary(0x21, 0x21, SIX), ("2001:db8::7", 50001)),
        (binary(0x20, 0x00, b""), None),
        (binary(0x20, 0x11, FOUR), None),
        (binary(0x21, 0x00, b""), None),
        (binary(0x21, 0x31, bytes(216)), None),
    ],
)
@pytest.mark.parametrize("pieces", [1, 7, 1_000_000])
def test_whose_a_connection_is(header: bytes, source: tuple[str, int] | None, pieces: int) -> None:
    behind = b"POST /v2 HTTP/1.1\r\n"
    assert read(header + behind, pieces) == (source, behind)


@pytest.mark.parametrize(
    "header",
    [
        b"GET /v2/health/live HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 50000 8000\n" + b" " * 100,
        b"PROXY TCP4 192.0.2.7 10.0.0.1 50000\r\n",
        b"PROXY TCP4 2001:db8::7 ::1 50001 8000\r\n",
        b"PROXY TCP4 192.0.2.7\n10.0.0.1 50000 8000 80\r\n",
        b"PROXY TCP4 192.0.2.256 10.0.0.1 50000 8000\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 65536 8000\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 -1 8000\r\n",
        b"PROXY TCP4 192.0.2.7  10.0.0.1 50000 8000\r\n",
        b"PROXY TCP4 \xff.0.2.7 10.0.0.1 50000 8000\r\n",
        b"PROXY UDP4 192.0.2.7 10.0.0.1 50000 8000\r\n",
        b"PROXY TCP4 " + b"1" * 200 + b"\r\n",
        SIGNATURE + b"\x31\x11\x00\x0c" + FOUR,
        SIGNATURE + b"\x22\x11\x00\x0c" + FOUR,
        SIGNATURE + b"\x21\x12\x00\x0c" + FOUR,
        SIGNATURE + b"\x21\x99\x00\x0c" + FOUR,
        SIGNATURE + b"\x21\x11\x00\x0b" + FOUR,
        SIGNATURE + b"\x21\x21\x00\x0c" + FOUR,
        SIGNATURE + b"\x21\x11" + struct.pack("!H", PROXY_HEADER_BYTES_MAX + 1) + FOUR,
    ],
)
@pytest.mark.parametrize("pieces", [1, 1_000_000])
def test_what_is_no_header(header: bytes, pieces: int) -> None:
    with pytest.raises(ProxyHeaderError):
        read(header, pieces)


_HOSTILE = st.tuples(st.sampled_from([b"", b"PROXY ", SIGNATURE]), st.binary(max_size=300)).map(b"".join)


@given(_HOSTILE)
def test_nothing_else_is_raised_and_no_header_is_long(data: bytes) -> None:
    header = ProxyHeader()
    taken = 0
    try:
        while header.needed and data:
            piece, data = data[: header.needed], data[header.needed :]
            taken += len(piece)
            header.feed(piece)
    except ProxyHeaderError:
        pass
    assert taken <= 16 + PROXY_HEADER_BYTES_MAX
