"""StoredCache: answers in a store outside the engine's memory: Redis, or a compiled cache.

The store is called in threads of the engine's kind. Nothing here makes a request fail or wait for long: a store that does not
answer within its patience is left alone for a while, growing with each failure in a row, and meanwhile requests run as if
nothing were cached.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from tpy.clock import Clock
from tpy.limits import (
    CACHE_ENTRY_BYTES_MAX,
    CACHE_INSERTION_BYTES_WAITING_MAX,
    CACHE_JOBS_MAX,
    CACHE_PAUSE_NS_MAX,
    CACHE_PAUSE_NS_MIN,
)
from tpy.messages import CacheStatistics, ParameterValue, Tensor, held_bytes
from tpy.units import NS_PER_S, NS_PER_US
from tpy_data.cache.core.entry import CachedResponse
from tpy_data.cache.core.wire import NotAnEntry, NotWritable, read_entry, write_entry
from tpy_data.cache.store import InsertWaiter, LookupWaiter, Store, StoreRefusal, StoreUnavailable
from tpy_data.executors.executor import Executor

_log = logging.getLogger(__name__)


class StoredCache:
    """See ResponseCache."""

    shared = True

    def __init__(self, store: Store, executor: Executor, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._worker = executor.open_worker("cache", threads_max=store.threads_max)
        self._jobs = 0
        self._bytes_waiting = 0
        self._pause_ns = 0
        """Pause after the newest failure; 0 while the store answers."""
        self._paused_at_ns = 0
        self._probing = False
        self.failing = False
        """Written in threads: after the first failure, the jobs that wait behind it do not even try."""
        self._told_refusal = False
        self._hits = self._misses = self._lookup_ns = self._insertion_ns = 0

    def lookup(self, key: bytes, waiter: LookupWaiter) -> None:
        """Answers inside the call when the store is not asked."""
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
        size_bytes = held_bytes(outputs, CACHE_ENTRY_BYTES_MAX)
        if self._bytes_waiting + size_bytes > CACHE_INSERTION_BYTES_WAITING_MAX or not self._may_ask():
            waiter.inserted()
            return
        job = _Job(self, key, self._now_ns(), answer=(outputs, parameters), inserter=waiter)
        job.size_bytes = size_bytes
        self._bytes_waiting += size_bytes
        self._put(job)

    def forget(self, owner: str) -> None:
        """Nothing: others may serve the same content. The store evicts by its own rules."""

    def statistics(self) -> CacheStatistics:
        """The counts of this server's lookups and insertions; the store alone knows size and entries."""
        return CacheStatistics(
            hits=self._hits,
            misses=self._misses,
            lookup_us=self._lookup_ns // NS_PER_US,
            insertion_us=self._insertion_ns // NS_PER_US,
        )

    def close(self) -> None:
        """Close the store, after what is on its way."""
        self._worker.put(_Closing(self._store.close))
        self._worker.close()

    # On the Trio thread

    def finished(self, job: _Job) -> None:
        """A job is over."""
        self._jobs -= 1
        self._note(job)
        took_ns = self._now_ns() - job.put_ns
        if job.refusal and not self._told_refusal:
            self._told_refusal = True
            _log.warning(
                "Failed to %s key [%s] %s response cache: %s; further ones are not reported",
                *(("look up", job.key.hex(), "in") if job.answer is None else ("insert", job.key.hex(), "into")),
                job.refusal,
                extra={"context": {"cache": self._store.name}},
            )
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
            job.inserter.inserted()

    def _may_ask(self) -> bool:
        """Not while too much is under way; after a failure and its pause, one at a time, to see whether the store is back."""
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
        """Record the outcome of a job for the store's health."""
        if job.probes:
            self._probing = False
        if job.outcome is _Outcome.ANSWERED:
            self.failing = False
            if self._pause_ns:
                self._pause_ns = 0
                _log.info("the response cache answers again", extra={"context": {"cache": self._store.name}})
        elif job.outcome is _Outcome.FAILED and job.put_ns >= self._paused_at_ns:
            # Jobs put before the pause failed together with the one that began it.
            self._pause_ns = min(max(2 * self._pause_ns, CACHE_PAUSE_NS_MIN), CACHE_PAUSE_NS_MAX)
            self._paused_at_ns = self._now_ns()
            _log.warning(
                "the response cache does not answer: requests run without it",
                extra={"context": {"cache": self._store.name, "reason": job.reason, "pause_s": self._pause_ns / NS_PER_S}},
            )

    def _now_ns(self) -> int:
        return self._clock.now_ns()

    # In a thread

    def left_s(self, job: _Job) -> float:
        """The time left for the job, which may be over before a thread begins it: then its request is better served
        without it."""
        return (job.put_ns + self._store.patience_ns - self._clock.now_ns()) / NS_PER_S

    def ask(self, job: _Job, deadline_s: float) -> None:
        """Do what the job says. Raises StoreUnavailable, or StoreRefusal."""
        if job.answer is None:
            data = self._store.get(job.key, deadline_s)
            if data is not None and 0 < len(data) <= CACHE_ENTRY_BYTES_MAX:
                try:
                    job.response = read_entry(data, job.key)
                except NotAnEntry as error:
                    _log.debug("an entry of the response cache is not one: %s", error)
            return
        outputs, parameters = job.answer
        try:
            data = write_entry(job.key, outputs, parameters) if job.size_bytes <= CACHE_ENTRY_BYTES_MAX else b""
        except NotWritable as error:
            _log.debug("Failed to insert key [%s] into response cache: %s", job.key.hex(), error)
            return
        if not 0 < len(data) <= CACHE_ENTRY_BYTES_MAX:
            raise StoreRefusal(f"the answer is larger than the {CACHE_ENTRY_BYTES_MAX} bytes that one may have")
        self._store.put(job.key, data, deadline_s)


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
        "refusal",
        "response",
        "size_bytes",
        "waiter",
    )

    def __init__(
        self,
        cache: StoredCache,
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
        self.refusal = ""
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
        try:
            cache.ask(self, time.monotonic() + left_s)
        except StoreUnavailable as error:
            cache.failing = True
            self.outcome, self.reason = _Outcome.FAILED, str(error)
        except StoreRefusal as error:
            self.outcome, self.refusal = _Outcome.ANSWERED, str(error)
        except Exception:  # out of memory, say: the thread goes on
            _log.exception("the response cache failed")
        else:
            self.outcome = _Outcome.ANSWERED
        return True

    def finished(self) -> None:
        """Back on the Trio thread."""
        self._cache.finished(self)


class _Closing:
    """Closes the store when the jobs before it are done."""

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
