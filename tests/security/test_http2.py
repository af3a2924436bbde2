"""HTTP/2 floods (CVE-2023-44487, CVE-2025-8671, CVE-2019-9512 and their relatives), on both ports, and
what breaks HTTP/2 servers."""

from __future__ import annotations

import pytest
from hpack import Encoder

from .attacker import Attacker

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CALL = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"x"),
    (b":path", b"/inference.GRPCInferenceService/ServerLive"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 2, 3, 4, 6, 7, 8
_CONTINUATION, _UNKNOWN = 9, 200


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(fields: tuple[tuple[bytes, bytes], ...], stream: int = 1, *, end: bool = True) -> bytes:
    return frame(_HEADERS, 5 if end else 4, stream, Encoder().encode(fields, huffman=False))


def replaced(**fields: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """CALL with other pseudo-headers; an empty one is left out."""
    changed = {name[1:].decode(): value for name, value in CALL} | fields
    return tuple((f":{name}".encode(), value) for name, value in changed.items() if value)


FLOODS = {
    "rapid reset": lambda fields: b"".join(
        headers(fields, stream, end=False) + frame(_RESET, 0, stream, b"\0\0\0\x08") for stream in range(1, 10_000, 2)
    ),
    "pings": lambda _: frame(_PING, 0, 0, b"12345678") * 20_000,
    "settings": lambda _: frame(_SETTINGS, 0, 0, b"\0\4\0\1\0\0") * 20_000,
    "priorities": lambda _: b"".join(frame(_PRIORITY, 0, stream, b"\0\0\0\0\x10") for stream in range(1, 10_000, 2)),
    "continuations": lambda _: frame(_HEADERS, 0, 1) + frame(_CONTINUATION, 0, 1) * 20_000,
    "empty data": lambda fields: headers(fields, end=False) + frame(_DATA, 0, 1) * 20_000,
    "window updates": lambda _: frame(_WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * 20_000,
    "resets that we make": lambda fields: b"".join(
        headers(fields, stream, end=False) + frame(_WINDOW_UPDATE, 0, stream, bytes(4)) for stream in range(1, 10_000, 2)
    ),
    "empty headers": lambda fields: headers(fields, end=False) + frame(_HEADERS, 4, 1) * 20_000,
    "unknown frames": lambda _: frame(_UNKNOWN, 0, 0) * 20_000,
    "header bomb": lambda fields: frame(
        _HEADERS, 5, 1, Encoder().encode(fields) + b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * 12_000
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("port", ["http", "grpc"])
def test_a_flood_ends_its_connection(attacker: Attacker, port: str, flood: str) -> None:
    """On the HTTP port, which does not speak HTTP/2, with its first bytes."""
    address = attacker.server.http if port == "http" else attacker.server.grpc
    resident = attacker.resident_bytes()
    said = attacker.flood(PREFACE + frame(_SETTINGS, 0, 0) + FLOODS[flood](CALL), address)
    assert len(said) < 100_000
    assert port == "grpc" or said.startswith(b"HTTP/1.1 400 ")
    assert attacker.resident_bytes() - resident < 30_000_000


ODD = {
    "a method that is not ASCII": headers(replaced(method=b"G\xc3\xa9T")),
    "a path that is not ASCII": headers(replaced(path=b"/v2/\xc3\xa9")),
    "CONNECT without a path": headers(((b":method", b"CONNECT"), (b":authority", b"x"))),
    "no method": headers(replaced(method=b"")),
    "a body longer than it says": headers((*replaced(method=b"POST"), (b"content-length", b"5")), end=False)
    + frame(_DATA, 1, 1, b"x" * 100),
    "a header with a line end": headers((*CALL, (b"x-a", b"a\r\nb: c"))),
    "a request within a request": headers((*CALL, (b"transfer-encoding", b"chunked"))),
    "data for nobody": frame(_DATA, 0, 7, b"x"),
    "a stream that depends on itself": headers(CALL) + frame(_PRIORITY, 0, 1, b"\0\0\0\1\x10"),
}


def frames(data: bytes) -> set[int]:
    """The kinds of the frames in what a server said."""
    kinds = set[int]()
    while data:
        kinds.add(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return kinds


@pytest.mark.parametrize("odd", ODD)
def test_what_cannot_be_served_is_refused(attacker: Attacker, odd: str) -> None:
    """Its call is answered or reset, or its connection ended. And it is not reported as a bug: nobody can fill the log with it
    (see the fixture)."""
    said = attacker.farewell(PREFACE + frame(_SETTINGS, 0, 0) + ODD[odd], attacker.server.grpc)
    assert frames(said) & {_HEADERS, _RESET, _GOAWAY}
