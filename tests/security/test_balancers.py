"""The address of a client cannot be forged: by headers of the PROXY protocol on any port, with and without the flag for it."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.models import write_models
from tests.e2e.server import ServerProcess

from .attacker import Attacker
from .test_restricted_routes import PORTS, SERVICES

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
ADDRESSES = socket.inet_aton("192.0.2.7") + socket.inet_aton("10.0.0.1") + struct.pack("!HH", 50000, 8000)
LINE = b"PROXY TCP4 192.0.2.7 10.0.0.1 50000 8000\r\n"
BINARY = SIGNATURE + b"\x21\x11\x00\x0c" + ADDRESSES
ACCEPTED = {
    "version 1": LINE,
    "version 2": BINARY,
    "local": SIGNATURE + b"\x20\x00\x00\x00",
    "local with an address": SIGNATURE + b"\x20\x11\x00\x0c" + ADDRESSES,
    "a Unix socket": SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216),
    "a TLV longer than the header": SIGNATURE + b"\x21\x11\x00\x10" + ADDRESSES + b"\x04\xff\xffa",
    "a thousand TLVs": SIGNATURE + b"\x21\x11" + struct.pack("!H", 12 + 4000) + ADDRESSES + b"\x04\x00\x01a" * 1000,
}
REFUSED = {
    "two lines": LINE + LINE.replace(b"0.2.7", b"0.2.8"),
    "two headers": BINARY + BINARY,
    "a line behind a header": BINARY + LINE,
    "a length without room for the addresses": SIGNATURE + b"\x21\x11\x00\x05" + ADDRESSES,
    "the longest length": SIGNATURE + b"\x21\x11\xff\xff" + ADDRESSES + bytes(65_523),
    "datagrams": SIGNATURE + b"\x21\x12\x00\x0c" + ADDRESSES,
    "space before it": b" " + LINE,
    "no header": b"",
}
BEHIND_BALANCERS = ("http", "mlflow", "openai", "sagemaker", "tensorflow_serving", "torchserve", "vertex")
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@contextlib.contextmanager
def serving(home: Path, *flags: str) -> Iterator[Attacker]:
    write_models(home / "models")
    more = ("--management-address=127.0.0.1:0", f"--access-log={home / 'access.log'}", "--log-verbose=1", *flags)
    with ServerProcess(*PORTS, *more, repositories=[home / "models"]) as server:
        yield Attacker(server, home)


def status(attacker: Attacker, port: str, sent: bytes) -> int:
    """That of the only answer, 0: there was none."""
    try:
        answers = attacker.exchange(sent + GET, attacker.server.address(SERVICES[port]) or "")
    except ConnectionResetError:  # there were bytes that nobody has read
        return 0
    assert len(answers) < 2
    return answers[0].status if answers else 0


def test_behind_a_balancer(tmp_path: Path) -> None:
    """Its first header counts, and nothing else is served. The management address has no balancer before it."""
    with serving(tmp_path, "--proxy-protocol-http=true") as attacker:
        for port in BEHIND_BALANCERS:
            found = {name: status(attacker, port, sent) for name, sent in ACCEPTED.items()}
            assert set(found.values()) <= {200, 404}, (port, found)  # a path of HTTP's
            found = {name: status(attacker, port, sent) for name, sent in REFUSED.items()}
            assert set(found.values()) <= {0, 400}, (port, found)
        assert status(attacker, "management", b"") == 200
        assert {status(attacker, "management", sent) for sent in (*ACCEPTED.values(), LINE + LINE)} <= {0, 400}
        assert "192.0.2.8" not in attacker.server.log


@pytest.mark.parametrize("port", SERVICES)
def test_without_the_flag_nobody_is_somebody_else(tmp_path: Path, port: str) -> None:
    with serving(tmp_path) as attacker:
        assert status(attacker, port, b"") in (200, 404)
        found = {name: status(attacker, port, sent) for name, sent in {**ACCEPTED, **REFUSED}.items() if sent}
        assert set(found.values()) <= {0, 400}, found
        assert "192.0.2" not in attacker.server.log + (tmp_path / "access.log").read_text()
