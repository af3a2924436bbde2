"""A real Redis on a free port, for tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.e2e.waiting import wait_until


class RedisServer:
    """`stop` and `start` may follow each other; the port stays. Without persistence: every start is empty."""

    def __init__(self, directory: Path, password: str = "") -> None:
        self.password = password
        self._directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        flags = [
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(self._directory),
        ]
        if self.password:
            flags += ["--requirepass", self.password]
        self._process = subprocess.Popen(["redis-server", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with self.client() as client:
            wait_until(lambda: _answers(client), within_s=20)

    def stop(self) -> None:
        """Stop it; idempotent."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def client(self) -> redis.Redis:
        """A client of its own."""
        return redis.Redis(port=self.port, password=self.password or None)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


@contextmanager
def redis_server(directory: Path, password: str = "") -> Iterator[RedisServer]:
    """A running server. Skips the test where there is no Redis, except in CI, which must have one."""
    if shutil.which("redis-server") is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have redis-server")
        pytest.skip("redis-server is not installed (Debian package redis-server)")
    server = RedisServer(directory, password)
    server.start()
    try:
        yield server
    finally:
        server.stop()
