"""Families of the response cache as a whole, under Triton's names; Triton declares them all as gauges."""

from __future__ import annotations

from tpy.messages import CacheStatistics
from tpy.telemetry.exposition import MeasuredFamily, MetricKind, Sample
from tpy.telemetry.metrics import NO_LABELS

CACHE_FAMILIES = tuple(
    f"nv_cache_{what}"
    for what in (
        "num_hits",
        "num_misses",
        "num_lookups",
        "lookup_duration",
        "insertion_duration",
        "util",
        "num_entries",
        "num_evictions",
    )
)


def cache_families(cache: CacheStatistics | None) -> list[MeasuredFamily]:
    """The metric families of the cache; none without a cache. Without a size, those of size are left out."""
    if cache is None:
        return []
    families = [
        _gauge("nv_cache_num_hits", "Number of cache hits in response cache", cache.hits),
        _gauge("nv_cache_num_misses", "Number of cache misses in response cache", cache.misses),
        _gauge("nv_cache_num_lookups", "Number of cache lookups in response cache", cache.hits + cache.misses),
        _gauge("nv_cache_lookup_duration", "Total cache lookup duration (hit and miss), in microseconds", cache.lookup_us),
        _gauge("nv_cache_insertion_duration", "Total cache insertion duration, in microseconds", cache.insertion_us),
    ]
    if cache.bytes_max:
        families += [
            _gauge("nv_cache_util", "Cache utilization [0.0 - 1.0]", cache.bytes_used / cache.bytes_max),
            _gauge("nv_cache_num_entries", "Number of responses stored in response cache", cache.entries),
            _gauge("nv_cache_num_evictions", "Number of cache evictions in response cache", cache.evictions),
        ]
    return families


def _gauge(name: str, text: str, value: float) -> MeasuredFamily:
    return MeasuredFamily(name=name, kind=MetricKind.GAUGE, help=text, samples=(Sample(NO_LABELS, value),))
