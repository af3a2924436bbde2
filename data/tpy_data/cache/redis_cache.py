"""RedisCache: answers in a Redis server, which other servers of the same models share.

redis-py's synchronous client in threads of the engine's kind: its other client is for asyncio, which does not run here, and a
lookup that goes over a network does not feel the two hand-overs. Nothing here makes a request fail or wait for long: a Redis
that does not answer within its time-outs, those of a connection and a whole command together, is left alone for a while,
growing with each failure in a row, and meanwhile requests run as if nothing were cached.
"""

from __future__ import annotations

import enum
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tpy.clock import Clock
from tpy.limits import (
    CACHE_INSERTION_BYTES_WAITING_MAX,
    CACHE_JOBS_MAX,
    REDIS_ENTRY_BYTES_MAX,
    REDIS_PAUSE_NS_MAX,
    REDIS_PAUSE_NS_MIN,
)
from tpy.messages import CacheStatistics, ParameterValue, Tensor
from tpy.units import NS_PER_MS, NS_PER_S, NS_PER_US
from tpy_data.cache.contract import InsertWaiter, LookupWaiter
from tpy_data.cache.core.entry import CachedResponse
from tpy_data.cache.core.wire import NotAnEntry, NotWritable, read_entry, write_entry
from tpy_data.cache.options import RedisCacheOptions
from tpy_data.executors.executor import Executor

_log = logging.getLogger(__name__)

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


class RedisCache:
    """See ResponseCache."""

    shared = True

    def __init__(self, options: RedisCacheOptions, executor: Executor, clock: Clock) -> None:
        self._client = make_client(options)
        self._address = f"{options.host}:{options.port}"
        self._clock = clock
        self._worker = executor.open_worker("redis", threads_max=options.pool_size)
        self._patience_ns = (options.connect_timeout_ms + options.socket_timeout_ms) * NS_PER_MS
        self._jobs = 0
        self._bytes_waiting = 0
        self._pause_ns = 0
        """Pause after the newest failure; 0 while Redis answers."""
        self._paused_at_ns = 0
        self._probing = False
        self.failing = False
        """Written in threads: the first failure makes those that wait behind it not even try."""
        self._told_too_large = False
        self._hits = self._misses = self._lookup_ns = self._insertion_ns = 0

    def lookup(self, key: bytes, waiter: LookupWaiter) -> None:
        """Answers inside the call when Redis is not asked."""
        if self._may_ask():
            self._put(_Job(self, key, self._now_ns(), waiter=waiter))
        else:
            self._misses += 1
            waiter.found(None)

    def insert(
        self,
        key: bytes,
        outputs: Sequence[Tensor],
        parameters: Mapping[str, ParameterValue],
        *,
        owner: str,
        waiter: InsertWaiter,
    ) -> None:
        """The answer's arrays are written out in a thread, soon."""
        size_bytes = sum(tensor.array.nbytes for tensor in outputs)
        if self._bytes_waiting + size_bytes > CACHE_INSERTION_BYTES_WAITING_MAX or not self._may_ask():
            waiter.inserted()
            return
        job = _Job(self, key, self._now_ns(), answer=(outputs, parameters), inserter=waiter)
        job.size_bytes = size_bytes
        self._bytes_waiting += size_bytes
        self._put(job)

    def forget(self, owner: str) -> None:
        """Nothing: others may serve the same content. Redis evicts by its own rules."""

    def statistics(self) -> CacheStatistics:
        """The counts of this server's lookups and insertions; Redis alone knows size and entries."""
        return CacheStatistics(
            hits=self._hits,
            misses=self._misses,
            lookup_us=self._lookup_ns // NS_PER_US,
            insertion_us=self._insertion_ns // NS_PER_US,
        )

    def close(self) -> None:
        """Close the connections, after what is on its way."""
        self._worker.put(_Closing(self._client.close))
        self._worker.close()

    # On the Trio thread

    def finished(self, job: _Job) -> None:
        """A job is over."""
        self._jobs -= 1
        self._note(job)
        took_ns = self._now_ns() - job.put_ns
        if job.waiter is not None:
            self._lookup_ns += took_ns
            if job.response is None:
                self._misses += 1
            else:
                self._hits += 1
            job.waiter.found(job.response)
        if job.inserter is not None:
            self._insertion_ns += took_ns
            self._bytes_waiting -= job.size_bytes
            if job.too_large and not self._told_too_large:
                self._told_too_large = True
                _log.warning(
                    "Failed to insert key [%s] into response cache: the answer is too large for it; "
                    "further ones are not reported",
                    job.key.hex(),
                    extra={"context": {"bytes_max": REDIS_ENTRY_BYTES_MAX}},
                )
            job.inserter.inserted()

    def _may_ask(self) -> bool:
        """Not while too much is under way; after a failure and its pause, one at a time, to see whether Redis is back."""
        if self._jobs >= CACHE_JOBS_MAX:
            return False
        if not self._pause_ns:
            return True
        if self._probing or self._now_ns() < self._paused_at_ns + self._pause_ns:
            return False
        self._probing = True
        return True

    def _put(self, job: _Job) -> None:
        job.probes = self._probing
        self._jobs += 1
        self._worker.put(job)

    def _note(self, job: _Job) -> None:
        """Record the outcome of a job for Redis's health."""
        if job.probes:
            self._probing = False
        if job.outcome is _Outcome.ANSWERED:
            self.failing = False
            if self._pause_ns:
                self._pause_ns = 0
                _log.info("the response cache answers again", extra={"context": {"redis": self._address}})
        elif job.outcome is _Outcome.FAILED and job.put_ns >= self._paused_at_ns:
            # Those that were put before the pause failed together with the one that began it.
            self._pause_ns = min(max(2 * self._pause_ns, REDIS_PAUSE_NS_MIN), REDIS_PAUSE_NS_MAX)
            self._paused_at_ns = self._now_ns()
            _log.warning(
                "the response cache does not answer: requests run without it",
                extra={"context": {"redis": self._address, "reason": job.reason, "pause_s": self._pause_ns / NS_PER_S}},
            )

    def _now_ns(self) -> int:
        return self._clock.now_ns()

    # In a thread

    def left_s(self, job: _Job) -> float:
        """The time left for the job, which may be over before a thread begins it: then its request is better served
        without it."""
        return (job.put_ns + self._patience_ns - self._clock.now_ns()) / NS_PER_S

    def ask(self, job: _Job) -> None:
        """Do what the job says. Raises redis.RedisError or OSError when Redis does not answer."""
        name = _PREFIX + job.key.hex().encode()
        if job.answer is None:
            data = self._client.getrange(name, 0, REDIS_ENTRY_BYTES_MAX)
            if isinstance(data, bytes) and 0 < len(data) <= REDIS_ENTRY_BYTES_MAX:
                try:
                    job.response = read_entry(data, job.key)
                except NotAnEntry as error:
                    _log.debug("an entry of the response cache is not one: %s", error)
            return
        outputs, parameters = job.answer
        try:
            data = write_entry(job.key, outputs, parameters) if job.size_bytes <= REDIS_ENTRY_BYTES_MAX else b""
        except NotWritable as error:
            _log.debug("Failed to insert key [%s] into response cache: %s", job.key.hex(), error)
            return
        if 0 < len(data) <= REDIS_ENTRY_BYTES_MAX:
            self._client.set(name, data)
        else:
            job.too_large = True


class _Outcome(enum.Enum):
    ANSWERED = "answered"
    SKIPPED = "skipped"
    FAILED = "failed"


class _Job:
    """One lookup (`waiter`) or insertion (`answer`, `inserter`): a job for the worker."""

    __slots__ = (
        "_cache",
        "answer",
        "inserter",
        "key",
        "outcome",
        "probes",
        "put_ns",
        "reason",
        "response",
        "size_bytes",
        "too_large",
        "waiter",
    )

    def __init__(
        self,
        cache: RedisCache,
        key: bytes,
        put_ns: int,
        *,
        waiter: LookupWaiter | None = None,
        inserter: InsertWaiter | None = None,
        answer: tuple[Sequence[Tensor], Mapping[str, ParameterValue]] | None = None,
    ) -> None:
        self.key = key
        self.put_ns = put_ns
        self.waiter = waiter
        self.inserter = inserter
        self.answer = answer
        self.size_bytes = 0
        self.response: CachedResponse | None = None
        self.too_large = False
        self.probes = False
        self.outcome = _Outcome.SKIPPED
        self.reason = ""
        self._cache = cache

    has_more = False

    def begin(self) -> None:
        """Nothing to do."""

    def run(self) -> bool:
        """In a thread."""
        cache = self._cache
        left_s = cache.left_s(self)
        if (cache.failing and not self.probes) or left_s <= 0:
            return True
        _deadline.at_s = time.monotonic() + left_s
        try:
            cache.ask(self)
        except (redis.RedisError, OSError) as error:
            cache.failing = True
            self.outcome, self.reason = _Outcome.FAILED, str(error) or type(error).__name__
        except Exception:  # out of memory, say: the thread goes on
            _log.exception("the response cache failed")
        else:
            self.outcome = _Outcome.ANSWERED
        return True

    def finished(self) -> None:
        """Back on the Trio thread."""
        self._cache.finished(self)


class _Closing:
    """Closes the client when the jobs before it are done."""

    __slots__ = ("_close",)

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    has_more = False

    def begin(self) -> None:
        """Nothing to do."""

    def run(self) -> bool:
        """In a thread."""
        self._close()
        return False

    def finished(self) -> None:
        """Nothing to do."""
