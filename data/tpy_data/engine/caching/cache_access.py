"""CacheAccess: what the cached models of a server share."""

from __future__ import annotations

from tpy.clock import Clock
from tpy.errors import Unsupported
from tpy.limits import CACHE_HASH_THREADS_MAX
from tpy_data.cache.contract import ResponseCache
from tpy_data.cache.local import LocalCache
from tpy_data.cache.options import CacheOptions, LocalCacheOptions
from tpy_data.executors.executor import Executor, Worker


class CacheAccess:
    """The cache, and the threads that make keys of large requests; `hashing` says how many they are making. `token` is of this
    run of the server alone."""

    __slots__ = ("cache", "clock", "hashing", "token", "worker")

    def __init__(self, cache: ResponseCache, worker: Worker, clock: Clock, *, token: str = "") -> None:
        self.cache = cache
        self.worker = worker
        self.clock = clock
        self.token = token
        self.hashing = 0

    def close(self) -> None:
        """The server ends."""
        self.worker.close()
        self.cache.close()


def open_cache(options: CacheOptions | None, executor: Executor, clock: Clock) -> CacheAccess | None:
    """The cache that the operator chose. Raises TpyError for one that cannot be had."""
    if options is None:
        return None
    keys = executor.open_worker("cache-keys", threads_max=CACHE_HASH_THREADS_MAX)
    if isinstance(options, LocalCacheOptions):
        return CacheAccess(LocalCache(options.size_bytes, executor.open_worker("cache"), clock), keys, clock)
    try:
        from tpy_data.cache.redis_cache import RedisCache  # of an extra: looked for only where it is wanted
    except ImportError as error:
        raise Unsupported(f"--cache-config redis needs Redis' client (pip install redis): {error}") from error

    return CacheAccess(RedisCache(options, executor, clock), keys, clock, token=options.server_token)
