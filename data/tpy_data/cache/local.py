"""LocalCache: answers in this process's memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tpy.clock import Clock
from tpy.limits import CACHE_INLINE_BYTES_MAX, CACHE_JOBS_MAX
from tpy.messages import CacheStatistics, ParameterValue, Tensor, held_bytes
from tpy.units import NS_PER_US
from tpy_data.cache.core.entry import CachedResponse, entry_bytes, keep
from tpy_data.cache.core.lru import LruCore
from tpy_data.cache.store import InsertWaiter, LookupWaiter
from tpy_data.executors.executor import Worker

_log = logging.getLogger(__name__)


class LocalCache:
    """See ResponseCache. A lookup answers at once. Large answers are measured and copied by `worker`: the loop goes on."""

    shared = False

    def __init__(self, bytes_max: int, worker: Worker, clock: Clock) -> None:
        self._core: LruCore[CachedResponse] = LruCore(bytes_max)
        self._worker = worker
        self._clock = clock
        self._copies = 0
        self._forgotten: set[str] = set()
        self._told_too_large: set[str] = set()
        self._lookup_ns = 0
        self._insertion_ns = 0

    def lookup(self, key: bytes, waiter: LookupWaiter) -> None:
        """Answers inside the call."""
        begun_ns = self._clock.now_ns()
        response = self._core.get(key)
        self._lookup_ns += self._clock.now_ns() - begun_ns
        waiter.found(response)

    def insert(
        self,
        key: bytes,
        outputs: Sequence[Tensor],
        parameters: Mapping[str, ParameterValue],
        *,
        owner: str,
        waiter: InsertWaiter,
    ) -> None:
        """Small answers are kept inside the call."""
        copy = _Copy(self, key, outputs, parameters, owner, waiter)
        if _is_small(outputs):
            copy.begin()
            copy.run()
            self.store(copy)
        elif self._copies < CACHE_JOBS_MAX:
            self._copies += 1
            self._worker.put(copy)
        else:
            waiter.inserted()  # too much is being copied already: this one is not kept

    def store(self, copy: _Copy) -> None:
        """Keep what was copied."""
        owner = copy.owner
        if owner not in self._forgotten:
            kept = copy.response is not None and self._core.put(copy.key, copy.response, copy.size_bytes, owner)
            if not kept and owner not in self._told_too_large:
                self._told_too_large.add(owner)
                _log.warning(
                    "Failed to insert key [%s] into response cache: the answer is larger than the cache; "
                    "further ones of the model are not reported",
                    copy.key.hex(),
                    extra={"context": {"model": owner, "bytes": copy.size_bytes, "cache_bytes": self._core.bytes_max}},
                )
        self._insertion_ns += self._clock.now_ns() - copy.begun_ns
        copy.waiter.inserted()

    def copied(self, copy: _Copy) -> None:
        """A copy came back from the worker."""
        self._copies -= 1
        self.store(copy)
        if not self._copies:
            self._forgotten.clear()

    def forget(self, owner: str) -> None:
        """Drop its answers; answers that are still being copied will not be kept."""
        self._core.forget(owner)
        self._told_too_large.discard(owner)
        if self._copies:
            self._forgotten.add(owner)

    def statistics(self) -> CacheStatistics:
        """Counters of the whole cache."""
        core = self._core
        return CacheStatistics(
            bytes_max=core.bytes_max,
            bytes_used=core.bytes_used,
            entries=len(core),
            hits=core.hits,
            misses=core.misses,
            evictions=core.evictions,
            lookup_us=self._lookup_ns // NS_PER_US,
            insertion_us=self._insertion_ns // NS_PER_US,
        )

    def close(self) -> None:
        """No more large answers are copied."""
        self._worker.close()

    @property
    def bytes_max(self) -> int:
        """Its size."""
        return self._core.bytes_max

    def now_ns(self) -> int:
        """The time; any thread."""
        return self._clock.now_ns()


def _is_small(outputs: Sequence[Tensor]) -> bool:
    """Returns True if copying takes less time than a hand-over to a thread."""
    return held_bytes(outputs, CACHE_INLINE_BYTES_MAX + 1) <= CACHE_INLINE_BYTES_MAX


class _Copy:
    """One answer on its way into the cache: a job for the worker, or run in place. `response` None: too large to be kept."""

    __slots__ = ("_cache", "_outputs", "_parameters", "begun_ns", "key", "owner", "response", "size_bytes", "waiter")

    def __init__(
        self,
        cache: LocalCache,
        key: bytes,
        outputs: Sequence[Tensor],
        parameters: Mapping[str, ParameterValue],
        owner: str,
        waiter: InsertWaiter,
    ) -> None:
        self.key = key
        self.owner = owner
        self.waiter = waiter
        self.response: CachedResponse | None = None
        self.size_bytes = 0
        self.begun_ns = 0
        self._cache = cache
        self._outputs = outputs
        self._parameters = parameters

    has_more = False

    def begin(self) -> None:
        """Its turn has come."""
        self.begun_ns = self._cache.now_ns()

    def run(self) -> bool:
        """Measure first: what does not fit is not copied."""
        self.size_bytes = entry_bytes(self._outputs, self._parameters, self._cache.bytes_max + 1)
        if self.size_bytes <= self._cache.bytes_max:
            self.response = keep(self._outputs, self._parameters)
        return True

    def finished(self) -> None:
        """Back on the Trio thread."""
        self._cache.copied(self)
