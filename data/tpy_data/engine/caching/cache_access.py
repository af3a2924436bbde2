"""CacheAccess: what the cached models of a server share."""

from __future__ import annotations

from tpy.backend import Isolation
from tpy.clock import Clock
from tpy.errors import Unsupported
from tpy.limits import CACHE_HASH_THREADS_MAX
from tpy.messages import CacheStatistics
from tpy.telemetry.cache import CACHE_FAMILIES
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy_data.cache.local import LocalCache
from tpy_data.cache.options import CacheOptions, CompiledCacheOptions, LocalCacheOptions, RedisCacheOptions
from tpy_data.cache.store import ResponseCache, Store
from tpy_data.cache.stored import StoredCache
from tpy_data.executors.executor import Executor, Worker
from tpy_native.caches.compiled import CacheInProcess, CacheLibrary


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
        return CacheAccess(LocalCache(options.size_bytes, executor.open_worker("cache"), clock), keys, clock)
    is_compiled = isinstance(options, CompiledCacheOptions)
    store = _open_compiled(options, metrics) if isinstance(options, CompiledCacheOptions) else _open_redis(options)
    cache = StoredCache(store, executor, clock)
    return CacheAccess(cache, keys, clock, token=options.server_token, has_own_metrics=is_compiled)


def _open_redis(options: RedisCacheOptions) -> Store:
    try:
        from tpy_data.cache.redis_store import RedisStore  # of an extra: looked for only where it is wanted
    except ImportError as error:
        raise Unsupported(f"--cache-config redis needs Redis' client (pip install redis): {error}") from error
    return RedisStore(options)


def _open_compiled(options: CompiledCacheOptions, metrics: CustomMetrics) -> Store:
    metrics.unreserve(CACHE_FAMILIES)  # Triton's own cache makes them
    if options.isolation is Isolation.PROCESS:
        return CacheInProcess(options, metrics)
    return CacheLibrary(options.name, options.library, options.settings, metrics)
