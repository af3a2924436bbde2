"""CacheAccess: what the cached models of a server share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpy.clock import Clock
from tpy.errors import TpyError, Unavailable
from tpy.limits import CACHE_HASH_THREADS_MAX
from tpy.messages import CacheStatistics
from tpy.telemetry.cache import CACHE_FAMILIES
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy_data.cache.options import CacheOptions, LocalCacheOptions
from tpy_data.executors.executor import Executor, Worker

if TYPE_CHECKING:
    from tpy_data.cache.store import ResponseCache


class CacheAccess:
    """The cache, and the threads that make keys of large requests; `hashing` says how many they are making. `token` is of this
    run of the server alone. `has_own_metrics`: the cache makes the metrics of the whole cache itself, or has no metrics."""

    __slots__ = ("cache", "clock", "has_own_metrics", "hashing", "token", "worker")

    def __init__(
        self, cache: ResponseCache, worker: Worker, clock: Clock, *, token: str = "", has_own_metrics: bool = False
    ) -> None:
        self.cache = cache
        self.worker = worker
        self.clock = clock
        self.token = token
        self.has_own_metrics = has_own_metrics
        self.hashing = 0

    def statistics(self) -> CacheStatistics | None:
        """The counters of the whole cache; None where the cache has its own metrics."""
        return None if self.has_own_metrics else self.cache.statistics()

    def close(self) -> None:
        """The server ends."""
        self.worker.close()
        self.cache.close()


def open_cache(options: CacheOptions | None, executor: Executor, clock: Clock, metrics: CustomMetrics) -> CacheAccess | None:
    """The cache that the operator chose. Raises TpyError for one that cannot be had. Starting the process of a compiled one
    takes a second, and the loop waits: the server serves nothing yet."""
    if options is None:
        return None
    keys = executor.open_worker("cache-keys", threads_max=CACHE_HASH_THREADS_MAX)
    if isinstance(options, LocalCacheOptions):
        from tpy_data.cache.local import LocalCache  # most servers have no cache

        return CacheAccess(LocalCache(options.size_bytes, executor.open_worker("cache"), clock), keys, clock)
    if options.kind.has_own_metrics:
        metrics.unreserve(CACHE_FAMILIES)
    try:
        store = options.kind.open(options.options, metrics)
    except TpyError:
        raise
    except Exception as error:  # of a package that may not be ours
        raise Unavailable(f"the cache '{options.name}' cannot be opened: {type(error).__name__}: {error}") from error
    from tpy_data.cache.stored import StoredCache

    cache = StoredCache(store, executor, clock)
    return CacheAccess(cache, keys, clock, token=options.server_token, has_own_metrics=options.kind.has_own_metrics)
