"""The metrics of a memory budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tpy.telemetry.exposition import MeasuredFamily, Sample
from tpy.telemetry.host import MEMORY_BUDGET_FAMILIES
from tpy.telemetry.metrics import NO_LABELS

_ABOUT = {
    "bytes": "Memory that models may take, --model-memory-budget",
    "used_bytes": "Memory of the models that are loaded, are being loaded or unloaded",
    "gpu_bytes": "Memory of a GPU that models may take, --model-gpu-memory-budget",
    "gpu_used_bytes": "Memory on a GPU of the models that are loaded, are being loaded or unloaded",
    "models": "Models that are loaded on demand, by state",
    "waiting_requests": "Requests that wait for a model to be loaded",
    "loads_total": "Loads on demand",
    "unloads_total": "Unloads of models on demand, by reason",
    "refusals_total": "Requests refused because their model was not loaded, by reason",
}


class GpuBudgetUse(NamedTuple):
    """The budget of a GPU now."""

    id: int
    uuid: str
    budget_bytes: int
    used_bytes: int


class BudgetUse(NamedTuple):
    """A budget now; `models` by state, `unloads` and `refusals` by reason, since the start of the server."""

    budget_bytes: int
    used_bytes: int
    waiting_requests: int
    models: Mapping[str, int]
    loads: int
    unloads: Mapping[str, int]
    refusals: Mapping[str, int]
    gpus: Sequence[GpuBudgetUse] = ()


def budget_families(use: BudgetUse) -> list[MeasuredFamily]:
    """The families of the metrics page."""
    samples = {
        "bytes": _one(use.budget_bytes),
        "used_bytes": _one(use.used_bytes),
        "gpu_bytes": tuple(Sample(_labels(gpu), gpu.budget_bytes) for gpu in use.gpus),
        "gpu_used_bytes": tuple(Sample(_labels(gpu), gpu.used_bytes) for gpu in use.gpus),
        "models": _by("state", use.models),
        "waiting_requests": _one(use.waiting_requests),
        "loads_total": _one(use.loads),
        "unloads_total": _by("reason", use.unloads),
        "refusals_total": _by("reason", use.refusals),
    }
    return [
        MeasuredFamily(name=name, kind=kind, help=_ABOUT[what], samples=samples[what])
        for name, kind in MEMORY_BUDGET_FAMILIES.items()
        for what in [name.removeprefix("tpy_memory_budget_")]
        if samples[what]
    ]


def _labels(gpu: GpuBudgetUse) -> Mapping[str, str]:
    return {"gpu": str(gpu.id), "gpu_uuid": gpu.uuid}


def _one(value: int) -> tuple[Sample, ...]:
    return (Sample(NO_LABELS, value),)


def _by(label: str, values: Mapping[str, int]) -> tuple[Sample, ...]:
    return tuple(Sample({label: key}, value) for key, value in values.items())
