"""Two snapshots of a server, and the rows of the models between them."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tpy.messages import InstanceState, ModelExplanation
from tpy.units import NS_PER_S, NS_PER_US
from tpy_tools.commands.top.core.metrics import ModelKey, ScrapedMetrics

_PHASES: Final = ("compute_input", "compute_infer", "compute_output")


class VersionCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Cumulative numbers of a model version, of its statistics."""

    succeeded: int = 0
    failed: int = 0
    success_ns: int = 0
    queue_ns: int = 0
    rows: int = 0
    batches: int = 0
    executing_ns: int = 0
    memory_bytes: int = 0


class ServerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A server at one moment: `at_s` on the clock of whoever took it. `states` has a state and a reason by model. `metrics` None:
    the page could not be read, for the reason in `trouble`."""

    at_s: float
    counters: Mapping[ModelKey, VersionCounters] = {}
    states: Mapping[ModelKey, tuple[str, str]] = {}
    metrics: ScrapedMetrics | None = None
    trouble: str = ""


class LatencySource(enum.Enum):
    """The sources of the latencies of a table."""

    HISTOGRAMS = "p50 and p99 of the interval, from histograms"
    SUMMARIES = "p50 and p99 of the last minute, from summaries"
    AVERAGES = "no percentiles: tpy serve --metrics-config histogram_latencies=true switches them on"


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model version between two snapshots: rates a second, times in nanoseconds; None: not known. `executing` is the mean
    number of batches that executed at the same time."""

    name: str
    version: str
    state: str = ""
    reason: str = ""
    rate: float = 0.0
    errors: float = 0.0
    queued: float | None = None
    batch: float | None = None
    mean_ns: float | None = None
    queue_ns: float | None = None
    p50_ns: float | None = None
    p99_ns: float | None = None
    executing: float = 0.0
    memory_bytes: int = 0
    instances: int | None = None
    alive: int | None = None
    waits_for: str = ""


def counters_of(entry: Mapping[str, Any]) -> VersionCounters:
    """The counters of an entry of `model_stats`."""
    stats = entry["inference_stats"]
    return VersionCounters(
        succeeded=stats["success"]["count"],
        failed=stats["fail"]["count"],
        success_ns=stats["success"]["ns"],
        queue_ns=stats["queue"]["ns"],
        rows=entry["inference_count"],
        batches=entry["execution_count"],
        executing_ns=sum(batch[phase]["ns"] for batch in entry.get("batch_stats", ()) for phase in _PHASES),
        memory_bytes=sum(usage["byte_size"] for usage in entry.get("memory_usage", ())),
    )


def rows_between(before: ServerSnapshot | None, after: ServerSnapshot) -> list[ModelRow]:
    """A row for each version of `after`, by name and version. A version that counts less than before was loaded again, or is that
    of another server: it counts from 0. Without `before` rates are 0."""
    seconds = 0.0 if before is None else after.at_s - before.at_s
    keys = sorted({*after.states, *after.counters}, key=lambda key: (key[0], len(key[1]), key[1]))
    return [_row(key, before, after, seconds) for key in keys]


def latencies_of(snapshot: ServerSnapshot) -> LatencySource:
    """The source of the latencies that a snapshot has."""
    metrics = snapshot.metrics
    if metrics is not None and metrics.buckets:
        return LatencySource.HISTOGRAMS
    return LatencySource.SUMMARIES if metrics is not None and metrics.quantiles else LatencySource.AVERAGES


def explained(row: ModelRow, explanation: ModelExplanation) -> ModelRow:
    """The row with what the model's engine says."""
    active = [each for each in explanation.instances if each.state is not InstanceState.PASSIVE]
    return msgspec.structs.replace(
        row,
        instances=len(active),
        alive=sum(each.state is not InstanceState.FAILED for each in active),
        queued=explanation.activity.queue.waiting if row.queued is None else row.queued,
        waits_for="" if explanation.limit == "nothing" else explanation.limit,
    )


def _row(key: ModelKey, before: ServerSnapshot | None, after: ServerSnapshot, seconds: float) -> ModelRow:
    state, reason = after.states.get(key, ("", ""))
    metrics, now = after.metrics, after.counters.get(key)
    row = ModelRow(name=key[0], version=key[1], state=state, reason=reason)
    if now is None:
        return row
    queued = None if metrics is None else metrics.pending.get(key)
    row = msgspec.structs.replace(row, memory_bytes=now.memory_bytes, queued=queued)
    then = None if before is None else before.counters.get(key)
    if before is None or seconds <= 0:
        return row
    if then is None or now.succeeded < then.succeeded or now.failed < then.failed or now.batches < then.batches:
        then = VersionCounters()
    succeeded, batches = now.succeeded - then.succeeded, now.batches - then.batches
    p50_ns, p99_ns = _percentiles(key, before.metrics, metrics)
    return msgspec.structs.replace(
        row,
        rate=succeeded / seconds,
        errors=(now.failed - then.failed) / seconds,
        batch=(now.rows - then.rows) / batches if batches else None,
        mean_ns=(now.success_ns - then.success_ns) / succeeded if succeeded else None,
        queue_ns=(now.queue_ns - then.queue_ns) / succeeded if succeeded else None,
        executing=max(0.0, now.executing_ns - then.executing_ns) / (seconds * NS_PER_S),
        p50_ns=p50_ns,
        p99_ns=p99_ns,
    )


def _percentiles(key: ModelKey, before: ScrapedMetrics | None, after: ScrapedMetrics | None) -> tuple[float | None, float | None]:
    if after is None:
        return None, None
    if key in after.buckets:
        earlier = {} if before is None else before.buckets.get(key, {})
        counts = {bound: count - earlier.get(bound, 0) for bound, count in after.buckets[key].items()}
        if any(count < 0 for count in counts.values()):
            counts = after.buckets[key]  # of another server
        return tuple(_seconds_to_ns(quantile(counts, share)) for share in (0.5, 0.99))  # type: ignore[return-value]  # two
    quantiles = after.quantiles.get(key, {})
    found = (quantiles.get(0.5), quantiles.get(0.99))
    return tuple(None if value is None or math.isnan(value) else value * NS_PER_US for value in found)  # type: ignore[return-value]


def _seconds_to_ns(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * NS_PER_S


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """The value that this share of observations is below, as Prometheus' histogram_quantile finds it: evenly within a bucket, and
    the last bound for what is above. None without observations. `buckets` are cumulative counts by upper bound."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0
    if not total:
        return None
    rank, low, below = share * total, 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank:
            if math.isinf(bound):
                return low
            width = buckets[bound] - below
            return low + (bound - low) * ((rank - below) / width if width else 1.0)
        low, below = bound, buckets[bound]
    return low


def _or_less(value: float | None) -> float:
    return -1.0 if value is None else value


SORT_KEYS: Final[Mapping[str, Callable[[ModelRow], Any]]] = {
    "rate": lambda row: row.rate,
    "errors": lambda row: row.errors,
    "queue": lambda row: _or_less(row.queued),
    "batch": lambda row: _or_less(row.batch),
    "mean": lambda row: _or_less(row.mean_ns),
    "p50": lambda row: _or_less(row.p50_ns),
    "p99": lambda row: _or_less(row.p99_ns),
    "busy": lambda row: row.executing,
    "memory": lambda row: row.memory_bytes,
    "name": lambda row: row.name,
    "state": lambda row: row.state,
}
"""The value that rows are sorted by: numbers the largest first, names from A."""


def in_order(rows: Sequence[ModelRow], key: str, *, reverse: bool = False) -> list[ModelRow]:
    """The rows, sorted; equal ones stay in the order of their names."""
    descending = key not in ("name", "state")
    return sorted(rows, key=SORT_KEYS[key], reverse=descending is not reverse)
