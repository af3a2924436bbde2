"""The answers of all replicas as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TypeVar

from tpy.messages import IndexEntry, ModelState, ModelStatistics
from tpy.messages.statistics import (
    BatchStatistics,
    Duration,
    FailureCounts,
    InferenceStatistics,
    MemoryUsage,
    ResponseStatistics,
)

T = TypeVar("T")
K = TypeVar("K")


def merged_index(by_replica: Mapping[str, Sequence[IndexEntry]]) -> list[IndexEntry]:
    """One index of all replicas: a version is READY when it is on each of them; where they differ the reason says what it is on
    which."""
    keys = sorted({_key(entry) for entries in by_replica.values() for entry in entries})
    found = {replica: {_key(entry): entry for entry in entries} for replica, entries in by_replica.items()}
    loaded = {key[:2] for key in keys if key[2]}
    return [
        _one_entry({replica: entries.get(key) for replica, entries in found.items()}, key)
        for key in keys
        if key[2] or key[:2] not in loaded  # a replica that has never loaded it says so in the reason of the others' version
    ]


def _key(entry: IndexEntry) -> tuple[str, str, int]:
    return entry.namespace, entry.name, entry.version or 0


def _one_entry(by_replica: Mapping[str, IndexEntry | None], key: tuple[str, str, int]) -> IndexEntry:
    states = {replica: (None, "") if entry is None else (entry.state, entry.reason) for replica, entry in by_replica.items()}
    namespace, name, version = key
    if len(set(states.values())) == 1:
        state, reason = next(iter(states.values()))
    else:
        present = {state for state, _ in states.values()}
        state = next((each for each in _WORST_FIRST if each in present), None)
        if state is ModelState.READY:
            state = ModelState.UNAVAILABLE  # it is not loaded on some
        ready = sum(each is ModelState.READY for each, _ in states.values())
        others = [f"{replica}: {_shown(*each)}" for replica, each in sorted(states.items()) if each[0] is not ModelState.READY]
        reason = f"READY on {ready} of {len(states)} replicas; {'; '.join(others)}"
    return IndexEntry(namespace=namespace, name=name, version=version or None, state=state, reason=reason)


_WORST_FIRST = (ModelState.UNAVAILABLE, ModelState.UNLOADING, ModelState.LOADING, ModelState.READY)


def _shown(state: ModelState | None, reason: str) -> str:
    return f"{'not loaded' if state is None else state.value}{f' ({reason})' if reason else ''}"


def merged_statistics(by_replica: Iterable[Sequence[ModelStatistics]]) -> list[ModelStatistics]:
    """The sums of all replicas. The load is that of the busiest one."""
    found = _grouped((each for entries in by_replica for each in entries), lambda each: (each.namespace, each.name, each.version))
    return [reduce(_sum, entries) for _, entries in sorted(found.items())]


def _sum(a: ModelStatistics, b: ModelStatistics) -> ModelStatistics:
    loads = [each.load for each in (a, b) if each.load is not None]
    return ModelStatistics(
        name=a.name,
        version=a.version,
        namespace=a.namespace,
        last_inference_ms=max(a.last_inference_ms, b.last_inference_ms),
        inference_count=a.inference_count + b.inference_count,
        execution_count=a.execution_count + b.execution_count,
        inference=_sum_inference(a.inference, b.inference),
        batches=_merged((*a.batches, *b.batches), lambda each: each.batch_size, _sum_batches),
        responses=_merged((*a.responses, *b.responses), lambda each: each.index, _sum_responses),
        memory_usage=_merged((*a.memory_usage, *b.memory_usage), lambda each: (each.kind, each.id), _sum_memory),
        memory_growths=(*a.memory_growths, *b.memory_growths),
        failures=_sum_failures(a.failures, b.failures),
        pending_requests=a.pending_requests + b.pending_requests,
        load_duration_ns=max(a.load_duration_ns, b.load_duration_ns),
        metric_tags=a.metric_tags,
        caches=a.caches or b.caches,
        executing_s=max(a.executing_s, b.executing_s),
        load=max(loads, default=None),
        instance_restarts=a.instance_restarts + b.instance_restarts,
        max_batch_size=a.max_batch_size,
        generation={
            name: (max if name.endswith("_ratio") else _add)(a.generation.get(name, 0), b.generation.get(name, 0))
            for name in {**a.generation, **b.generation}
        },
    )


def _add(a: float, b: float) -> float:
    return a + b


def _plus(a: Duration, b: Duration) -> Duration:
    return Duration(a.count + b.count, a.ns + b.ns)


def _sum_inference(a: InferenceStatistics, b: InferenceStatistics) -> InferenceStatistics:
    names = InferenceStatistics.__struct_fields__
    return InferenceStatistics(**{name: _plus(getattr(a, name), getattr(b, name)) for name in names})


def _sum_failures(a: FailureCounts, b: FailureCounts) -> FailureCounts:
    names = FailureCounts.__struct_fields__
    return FailureCounts(**{name: getattr(a, name) + getattr(b, name) for name in names})


def _sum_batches(a: BatchStatistics, b: BatchStatistics) -> BatchStatistics:
    return BatchStatistics(
        batch_size=a.batch_size,
        compute_input=_plus(a.compute_input, b.compute_input),
        compute_infer=_plus(a.compute_infer, b.compute_infer),
        compute_output=_plus(a.compute_output, b.compute_output),
    )


def _sum_responses(a: ResponseStatistics, b: ResponseStatistics) -> ResponseStatistics:
    names = [name for name in ResponseStatistics.__struct_fields__ if name != "index"]
    return ResponseStatistics(index=a.index, **{name: _plus(getattr(a, name), getattr(b, name)) for name in names})


def _sum_memory(a: MemoryUsage, b: MemoryUsage) -> MemoryUsage:
    return MemoryUsage(kind=a.kind, id=a.id, byte_size=a.byte_size + b.byte_size)


def _grouped(values: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def _merged(values: Sequence[T], key: Callable[[T], K], add: Callable[[T, T], T]) -> tuple[T, ...]:
    return tuple(reduce(add, group) for _, group in sorted(_grouped(values, key).items(), key=lambda item: item[0]))  # type: ignore[arg-type,return-value]  # keys are numbers or texts
