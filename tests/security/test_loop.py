"""Nobody's message holds up the others: a health check is answered at once while the worst that the bounds allow is worked on.

The server runs with its default limits. The machine may be busy with other things, so the time of a health check under attack is
compared with that of one without, where it is long, and the best of three tries counts.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import hpack
import pytest

from tests.chaos.models import write_models
from tests.e2e.server import ServerProcess
from tests.pace import at_pace
from tpy._proto import message_class

from .attacker import Attacker

pytestmark = pytest.mark.alone

SERVICE = "/inference.GRPCInferenceService/"
_WORST_S = 0.05
_WORST_S_OF = {"streams": 0.15}
"""The garbage collector looks at all that a thousand open streams hold, some 50 ms at a time: see security.md."""
_TRIES = 3
_CLIENTS = 4
_CHANNEL = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
_OPEN_CHANNEL = (*_CHANNEL, ("grpc.use_local_subchannel_pool", 1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With default limits."""
    home = tmp_path_factory.mktemp("loop")
    write_models(home / "models")
    with ServerProcess("--model-control-mode=explicit", "--load-model=*", repositories=[home / "models"]) as server:
        yield server
        Attacker(server, Path(home)).check_served()


class Probe:
    """Asks both ports whether the server lives, again and again, while the block lasts. `worst_s` is the slowest answer, once the
    first ones have come."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._over_http), threading.Thread(target=self._over_grpc)]
        self.worst_s = 0.0
        self.count = 0

    def __enter__(self) -> Probe:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _over_http(self) -> None:
        connection = http.client.HTTPConnection(self._server.http, timeout=60)

        def ask() -> None:
            connection.request("GET", "/v2/health/live")
            assert connection.getresponse().read() == b""

        self._measure(ask)
        connection.close()

    def _over_grpc(self) -> None:
        with grpc.insecure_channel(self._server.grpc, options=_OPEN_CHANNEL) as channel:
            live = channel.unary_unary(f"{SERVICE}ServerLive")
            self._measure(lambda: live(b"", timeout=60))

    def _measure(self, ask: Callable[[], object]) -> None:
        ask()
        while not self._stop.is_set():
            began_s = time.monotonic()
            ask()
            self.worst_s = max(self.worst_s, time.monotonic() - began_s)
            self.count += 1
            time.sleep(0.001)


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    length, octets = len(payload), bytearray()
    while length >= 0x80:
        octets.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((number << 3 | 2, *octets, length)) + payload


def _named(count: int, number: int, *, within: bytes = b"") -> bytes:
    return b"".join(field(number, field(1, b"%d" % index) + within) for index in range(count))


NAME = field(1, b"affine")
STRINGS = field(1, b"INPUT0") + field(2, b"BYTES") + field(3, b"\x01")
MESSAGES: dict[str, bytes] = {
    "empty raw tensors": NAME + b"\x3a\x00" * 10_000_000,
    "empty raw tensors, 64 KiB": NAME + b"\x3a\x00" * 32_000,
    "empty inputs": NAME + b"\x2a\x00" * 10_000_000,
    "empty outputs": NAME + b"\x32\x00" * 10_000_000,
    "empty parameters": NAME + b"\x22\x00" * 10_000_000,
    "unknown fields": NAME + b"\x78\x00" * 10_000_000,
    "as many inputs as may be": NAME + _named(4_000, 5) + b"\x3a\x00" * 4_000,
    "as many parameters as may be": NAME + _named(8_000, 4),
    "parameters of inputs": NAME + b"".join(field(5, field(1, b"%d" % n) + _named(60, 4)) for n in range(130)),
    "empty strings in contents": NAME + field(5, STRINGS + field(5, b"\x42\x00" * 10_000_000)),
    "strings in contents": NAME + field(5, STRINGS + field(5, b"\x42\x01x" * 600_000)),
    "numbers that are not packed": NAME + field(5, field(2, b"INT32") + field(5, b"\x10\x01" * 10_000_000)),
    "packed numbers": NAME + field(5, field(2, b"INT64") + field(5, field(3, b"\x01" * 20_000_000))),
    "packed floats": NAME + field(5, field(2, b"FP32") + field(5, field(6, bytes(20_000_000)))),
    "dimensions": NAME + field(5, field(3, b"\x01" * 4_000_000)),
    "strings as raw tensors": NAME + field(5, STRINGS) + field(7, bytes(20_000_000)),
    "a long name": field(1, b"x" * 4_000_000),
}


SMALL = message_class("inference.ModelInferRequest")(model_name="nobody").SerializeToString()
CONTROL = {
    "settings": ("LogSettings", _named(60, 1)),
    "empty settings": ("LogSettings", b"\x0a\x00" * 30_000),
    "names": ("ModelReady", b"\x0a\x00" * 30_000),
    "parameters": ("RepositoryModelLoad", b"\x1a\x00" * 10_000_000),
    "files": ("RepositoryModelLoad", b"".join(field(3, field(1, b"file:%d" % n) + field(2, b"\x22\x00")) for n in range(4_000))),
}


def _call(server: ServerProcess, method: str, messages: list[bytes], *, stream: bool = False, compressed: bool = False) -> None:
    """Send them, one after the other, whatever is answered."""
    compression = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
    with grpc.insecure_channel(server.grpc, options=_OPEN_CHANNEL) as channel:
        if stream:
            with contextlib.suppress(grpc.RpcError):
                list(channel.stream_stream(SERVICE + method)(iter(messages), timeout=60, compression=compression))
            return
        for message in messages:
            with contextlib.suppress(grpc.RpcError):
                channel.unary_unary(SERVICE + method)(message, timeout=60, compression=compression)


def _at_once(*attacks: Callable[[], None]) -> None:
    threads = [threading.Thread(target=attack) for attack in attacks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def check_live(server: ServerProcess, attack: Callable[[], None], worst_s: float = _WORST_S) -> None:
    """Health checks take 50 ms (`worst_s`) more than without the attack at most, or as much longer as the machine has more to do
    than it can. Those without it are measured where they matter."""
    seen = []
    for _ in range(_TRIES):
        with Probe(server) as during:
            attack()
        busy = max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))
        if during.worst_s < at_pace(worst_s) * busy:
            return
        with Probe(server) as idle:
            time.sleep(0.3)
        seen.append((round(during.worst_s, 3), round(idle.worst_s, 3)))
        if during.worst_s < at_pace(worst_s) * busy + idle.worst_s:
            return
    raise AssertionError(f"health checks took (under attack, idle): {seen}")


@pytest.mark.parametrize("how", ["plain", "gzip"])
@pytest.mark.parametrize("kind", MESSAGES)
def test_a_request_holds_up_nobody(server: ServerProcess, kind: str, how: str) -> None:
    """On its own call, and on a stream at the same time."""
    messages, compressed = [MESSAGES[kind]] * 2, how == "gzip"
    check_live(
        server,
        lambda: _at_once(
            lambda: _call(server, "ModelInfer", messages, compressed=compressed),
            lambda: _call(server, "ModelStreamInfer", messages, stream=True, compressed=compressed),
        ),
    )


@pytest.mark.parametrize("kind", CONTROL)
def test_a_control_request_holds_up_nobody(server: ServerProcess, kind: str) -> None:
    method, message = CONTROL[kind]
    check_live(server, lambda: _at_once(*[lambda: _call(server, method, [message] * 3)] * 2))


def _prefixed(message: bytes, *, compressed: bool = False) -> bytes:
    return bytes((compressed,)) + len(message).to_bytes(4, "big") + message


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def _block(path: str, *fields: tuple[str, str]) -> bytes:
    """A header block that needs no table of the peer's."""
    base = [(":method", "POST"), (":scheme", "http"), (":path", path), ("te", "trailers"), ("content-type", "application/grpc")]
    return bytes(hpack.Encoder().encode([(name, value, True) for name, value in (*base, *fields)], huffman=False))


_END_STREAM, _END_HEADERS = 1, 4
_DATA, _HEADERS, _SETTINGS = 0, 1, 4


def _calls(message: bytes, path: str, *fields: tuple[str, str], compressed: bool = False, most: int = 1_000) -> bytes:
    """As many calls with it as fill some megabytes, their frames one behind the other."""
    data, block = _prefixed(message, compressed=compressed), _block(SERVICE + path, *fields)
    count = min(most, 4_000_000 // (len(data) + len(block)))
    ids = range(3, 2 * count, 2)
    return b"".join(_frame(_HEADERS, _END_HEADERS, n, block) + _frame(_DATA, _END_STREAM, n, data) for n in ids)


ZIPPED = ("grpc-encoding", "gzip")
FLOODS: dict[str, Callable[[], bytes]] = {
    "small requests": lambda: _calls(SMALL, "ModelInfer"),
    "requests just below a bound": lambda: _calls(NAME + _named(250, 5) + b"\x3a\x00" * 250, "ModelInfer"),
    "requests just above it": lambda: _calls(NAME + _named(1_000, 5) + b"\x3a\x00" * 1_000, "ModelInfer"),
    "bombs of a kilobyte": lambda: _calls(gzip.compress(bytes(900_000), 9), "ModelInfer", ZIPPED, compressed=True, most=100),
    "control requests": lambda: _calls(b"", "ServerMetadata"),
    "index requests": lambda: _calls(b"", "RepositoryIndex"),
    "many fields": lambda: _calls(SMALL, "ModelInfer", *((f"x{n}", "y") for n in range(240))),
    "long fields": lambda: _calls(SMALL, "ModelInfer", ("x", "\x7f" * 15_000)),
    "empty messages on a stream": lambda: (
        _frame(_HEADERS, _END_HEADERS, 3, _block(SERVICE + "ModelStreamInfer")) + _frame(_DATA, 0, 3, bytes(5) * 3_000) * 200
    ),
    "data in single bytes": lambda: (
        _frame(_HEADERS, _END_HEADERS, 3, _block(SERVICE + "ModelInfer"))
        + _frame(_DATA, 0, 3, _prefixed(bytes(500_000))[:5])
        + _frame(_DATA, 0, 3, b"x") * 40_000
    ),
    "settings": lambda: (
        b"".join(_frame(_HEADERS, _END_HEADERS, n, _block(SERVICE + "ModelInfer")) for n in range(3, 2000, 2))
        + _frame(_SETTINGS, 0, 0, b"\0\4\0\0\0\5\0\4\0\0\0\6" * 32) * 900
    ),
    "streams": lambda: b"".join(
        _frame(_HEADERS, _END_HEADERS, n, _block(SERVICE + "ModelStreamInfer")) + _frame(_DATA, 0, n, _prefixed(SMALL) * 50)
        for n in range(3, 500, 2)
    ),
}


def _flood(server: ServerProcess, sent: bytes) -> None:
    """Send it, and read what comes until the server is done with it or has had enough."""
    with Attacker(server, Path()).connect(server.grpc) as connection:
        reader = threading.Thread(target=_read_all, args=(connection,))
        with contextlib.suppress(OSError):
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
            reader.start()
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        reader.join()


def _read_all(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(1 << 20):
            pass


@pytest.mark.parametrize("kind", FLOODS)
def test_clients_that_send_much_at_once_hold_up_nobody(server: ServerProcess, kind: str) -> None:
    sent = FLOODS[kind]()
    check_live(server, lambda: _at_once(*[lambda: _flood(server, sent)] * _CLIENTS), _WORST_S_OF.get(kind, _WORST_S))
