"""The metrics of models whose batches are tuned, or formed by length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tpy.ids import ModelId, Version
from tpy.messages import QueueActivity
from tpy.telemetry.exposition import MeasuredFamily, Sample
from tpy.telemetry.host import BATCHING_FAMILIES
from tpy.units import NS_PER_S

_ABOUT = {
    "rows": "Rows that are sent at once of a full queue",
    "expected_seconds": "Expected time of that batch",
    "wait_seconds": "Longest time that a batch is held for company",
    "target_seconds": "Latency target",
    "late_total": "Requests that were answered after the latency target",
    "padding_ratio": "Share of the executed batches that was padding",
}


def batching_families(queues: Iterable[tuple[ModelId, Version, QueueActivity]]) -> list[MeasuredFamily]:
    """The families of the metrics page, of the versions that these queues are of."""
    samples: dict[str, list[Sample]] = {what: [] for what in _ABOUT}
    for model, version, queue in queues:
        labels = {"model": model.name, "version": str(version)}
        if model.namespace:
            labels["namespace"] = model.namespace
        for what, value in _values(queue):
            samples[what].append(Sample(labels, value))
    return [
        MeasuredFamily(name=name, kind=kind, help=_ABOUT[what], samples=tuple(samples[what]))
        for name, kind in BATCHING_FAMILIES.items()
        for what in [name.removeprefix("tpy_batching_")]
    ]


def _values(queue: QueueActivity) -> Iterator[tuple[str, float]]:
    if (tuning := queue.tuning) is not None:
        yield "rows", tuning.batch_rows
        yield "expected_seconds", tuning.batch_ns / NS_PER_S
        yield "wait_seconds", max([wait.wait_ns for wait in tuning.waits if tuning.may_wait], default=0) / NS_PER_S
        if tuning.target_ns:
            yield "target_seconds", tuning.target_ns / NS_PER_S
            yield "late_total", tuning.late
    if (lengths := queue.lengths) is not None:
        yield "padding_ratio", lengths.padding
