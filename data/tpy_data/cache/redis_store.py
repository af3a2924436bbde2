"""RedisStore: answers in a Redis server, which other servers of the same models share.

redis-py's synchronous client: its other one is for asyncio, which does not run here, and a lookup that goes over a network does
not feel the hand-over to a thread and back.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tpy.limits import CACHE_ENTRY_BYTES_MAX
from tpy.units import NS_PER_MS
from tpy_data.cache.redis_options import RedisCacheOptions
from tpy_data.cache.store import StoreUnavailable

_PREFIX = b"tpy-response:1:"


class _CommandDeadline(threading.local):
    """Until when the command of this thread may read, on time.monotonic's clock. redis-py's time-out is for each read alone: a
    Redis that sends a byte now and then would be read for ever."""

    at_s = math.inf


_deadline = _CommandDeadline()


class _TimedSocket:
    """A connection's socket whose reads end at the deadline of the thread's command. A sendall has one for the whole."""

    def __init__(self, wrapped: socket.socket) -> None:
        self._wrapped = wrapped
        self._timeout_s = wrapped.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def settimeout(self, timeout_s: float | None) -> None:
        """As socket.settimeout."""
        self._timeout_s = timeout_s
        self._wrapped.settimeout(timeout_s)

    def recv(self, size: int) -> bytes:
        """As socket.recv."""
        self._limit()
        return self._wrapped.recv(size)

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """As socket.recv_into."""
        self._limit()
        return self._wrapped.recv_into(buffer)

    def _limit(self) -> None:
        left_s = _deadline.at_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the command took too long")
        self._wrapped.settimeout(left_s if self._timeout_s is None else min(self._timeout_s, left_s))


class _TimedConnection(redis.Connection):
    def _connect(self) -> _TimedSocket:
        return _TimedSocket(super()._connect())  # type: ignore[no-untyped-call]


class _TimedSSLConnection(redis.SSLConnection):
    def _connect(self) -> _TimedSocket:
        return _TimedSocket(super()._connect())  # type: ignore[no-untyped-call]


def make_client(options: RedisCacheOptions) -> redis.Redis:
    """A client that connects when it is used, with a connection per thread at most, and tries once."""
    client = redis.Redis(
        host=options.host,
        port=options.port,
        db=options.db,
        username=options.user or None,
        password=options.password or None,
        socket_connect_timeout=options.connect_timeout_ms / 1000,
        socket_timeout=options.socket_timeout_ms / 1000,
        max_connections=options.pool_size,
        retry=Retry(NoBackoff(), 0),
        ssl=options.tls,
        ssl_certfile=options.certificate_file or None,
        ssl_keyfile=options.key_file or None,
        ssl_ca_certs=options.root_certificate_file or None,
    )
    client.connection_pool.connection_class = _TimedSSLConnection if options.tls else _TimedConnection
    return client


class RedisStore:
    """See Store."""

    def __init__(self, options: RedisCacheOptions) -> None:
        self.name = f"redis at {options.host}:{options.port}"
        self.threads_max = options.pool_size
        self.patience_ns = (options.connect_timeout_ms + options.socket_timeout_ms) * NS_PER_MS
        self._client = make_client(options)
        self._is_closed = False

    def get(self, key: bytes, deadline_s: float) -> bytes | None:
        """See Store."""
        with self._until(deadline_s):
            data = self._client.getrange(_name(key), 0, CACHE_ENTRY_BYTES_MAX)
        return data if isinstance(data, bytes) else None

    def put(self, key: bytes, data: bytes, deadline_s: float) -> None:
        """See Store."""
        with self._until(deadline_s):
            self._client.set(_name(key), data)

    def close(self) -> None:
        """Close the connections, also those on which commands run."""
        self._is_closed = True
        self._client.close()

    @contextmanager
    def _until(self, deadline_s: float) -> Iterator[None]:
        _deadline.at_s = deadline_s
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise StoreUnavailable(str(error) or type(error).__name__) from error
        except (ValueError, AttributeError) as error:
            if not self._is_closed:
                raise
            raise StoreUnavailable("it was closed") from error  # redis-py reads on from what was closed under its hands


def _name(key: bytes) -> bytes:
    return _PREFIX + key.hex().encode()
