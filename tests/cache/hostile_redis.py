"""A server that speaks Redis's protocol well enough to be believed, and then does harm, in threads of its own."""

from __future__ import annotations

import contextlib
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

_HELLO = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n"


class HostileRedis(socketserver.ThreadingTCPServer):
    """`harm`: what it does to those who read."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, harm: str) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.harm = harm
        self.kept: dict[bytes, bytes] = {}
        self.reads = 0

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self.server_address[1])


class _Connection(socketserver.StreamRequestHandler):
    server: HostileRedis

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while (command := _command(cast(BinaryIO, self.rfile))) is not None:
                self._answer(command)

    def _answer(self, command: list[bytes]) -> None:
        redis, verb = self.server, command[0].upper()
        if verb == b"SET":
            redis.kept[command[1]] = command[2]
        if verb != b"GETRANGE":
            self.wfile.write(_HELLO if verb == b"HELLO" else b"+OK\r\n")
            return
        redis.reads += 1
        kept = redis.kept.get(command[1], b"")
        match redis.harm:
            case "garbage":
                self.wfile.write(b"\xff\x00garbage\r\n" * 10)
            case "flips":
                kept = kept[:-1] + bytes([kept[-1] ^ 1]) if kept else b""
                self.wfile.write(b"$%d\r\n%b\r\n" % (len(kept), kept))
            case "mixes up":
                kept = next(reversed(redis.kept.values()), b"")
                self.wfile.write(b"$%d\r\n%b\r\n" % (len(kept), kept))
            case "promises":
                self.wfile.write(b"$2000000000\r\nx")
            case "drips":
                self.wfile.write(b"$1000\r\n")
                for _ in range(1002):
                    self.wfile.write(b"x")
                    time.sleep(0.05)
            case "sleeps":
                time.sleep(2)


def _command(stream: BinaryIO) -> list[bytes] | None:
    head = stream.readline()
    if not head.startswith(b"*"):
        return None
    parts = []
    for _ in range(int(head[1:])):
        size = int(stream.readline()[1:])
        parts.append(stream.read(size + 2)[:-2])
    return parts


@contextmanager
def hostile_redis(harm: str) -> Iterator[HostileRedis]:
    """Running inside the block."""
    with HostileRedis(harm) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
