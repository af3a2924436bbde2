"""--cache-config of a compiled cache: its options, and the store."""

from __future__ import annotations

from typing import Final

from tpy.backend import Isolation
from tpy.errors import InvalidArgument
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy_data.cache.kinds import ChosenCache
from tpy_data.cache.store import Store
from tpy_native.caches.options import CompiledCacheOptions

ISOLATION: Final = "isolation"
"""The setting that says where a library runs."""


class _CompiledKind:
    """See CacheKind."""

    has_own_metrics = True

    def read(self, chosen: ChosenCache) -> CompiledCacheOptions:
        """See CacheKind."""
        settings = dict(chosen.settings)
        isolation = settings.pop(ISOLATION, Isolation.PROCESS.value)
        if isolation not in {each.value for each in Isolation}:
            choice = " or ".join(each.value for each in Isolation)
            raise InvalidArgument(f"--cache-config: isolation is {choice}, got '{isolation}'")
        assert chosen.library is not None  # the cache is compiled
        return CompiledCacheOptions(name=chosen.name, library=chosen.library, isolation=Isolation(isolation), settings=settings)

    def open(self, options: CompiledCacheOptions, metrics: CustomMetrics) -> Store:
        """See CacheKind. Starting a process takes a second, and the loop waits: the server serves nothing yet."""
        from tpy_native.caches.compiled import CacheInProcess, CacheLibrary  # flags are read in processes that open none

        if options.isolation is Isolation.PROCESS:
            return CacheInProcess(options, metrics)
        return CacheLibrary(options.name, options.library, options.settings, metrics)


COMPILED: Final = _CompiledKind()
