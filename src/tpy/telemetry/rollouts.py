"""Families of rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tpy.ids import ModelId
from tpy.telemetry.exposition import MeasuredFamily, MetricKind, Sample

_PERCENT = "tpy_rollout_percent"
_DECISIONS = "tpy_rollout_decisions_total"

ROLLOUT_FAMILIES: Mapping[str, MetricKind] = {_PERCENT: MetricKind.GAUGE, _DECISIONS: MetricKind.COUNTER}


class RolloutShare(NamedTuple):
    """The share of requests that a new version of a model gets."""

    model: ModelId
    version: int
    percent: float


def rollout_families(shares: Sequence[RolloutShare], decisions: Mapping[tuple[ModelId, str], int]) -> list[MeasuredFamily]:
    """The metric families of rollouts; `decisions` counts them by model and by the state that they led to."""
    return [
        MeasuredFamily(
            name=_PERCENT,
            kind=MetricKind.GAUGE,
            help="Percent of the requests without a version that a new version gets",
            samples=tuple(Sample(_labels(each.model, version=str(each.version)), each.percent) for each in shares),
        ),
        MeasuredFamily(
            name=_DECISIONS,
            kind=MetricKind.COUNTER,
            help="Decisions of rollouts: a further step (running), promoted, rolled back",
            samples=tuple(Sample(_labels(model, state=state), count) for (model, state), count in decisions.items()),
        ),
    ]


def _labels(model: ModelId, **more: str) -> dict[str, str]:
    return {"model": model.name, **more} | ({"namespace": model.namespace} if model.namespace else {})
