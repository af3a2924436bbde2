"""Calls from model to model that wait for each other in a circle: none of them would ever end.

A batch that calls cannot end before its calls, and keeps its instance until then. A call that is queued cannot begin before an
instance of its model is free. So batches are stuck when each of them has a call that is

* queued at a model whose instances are all taken by stuck batches, or bound to the instance of one (a live sequence), or
* waiting at a rate limited model for resources that it can never get because stuck batches hold too many, or
* being executed in a stuck batch.

The largest such set is found by assuming all stuck and taking out, until nothing changes, who is not.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tpy_data.engine.requests.handle import NO_RESOURCES, Resources, WaitingRequest


class CallingBatch(NamedTuple):
    """A batch in execution that waits for `calls`. `requests` are the identities of its requests; `instance` where it runs, as
    far as that is known."""

    name: str
    model: Hashable
    instances: int
    """The number of instances that take work of the model's queue."""
    requests: frozenset[int]
    calls: Sequence[WaitingRequest]
    instance: int | None = None
    holds: Resources = NO_RESOURCES
    """The resources that it keeps others from."""


def find_circle(first: CallingBatch, batches: Sequence[CallingBatch], supply: Resources = NO_RESOURCES) -> list[str]:
    """The names of the models around a circle that `first` waits for, beginning and ending with the same; empty when it can go
    on. `first` is one of `batches`; `supply` is what there is of each resource."""
    stuck = list(batches)
    while True:
        free = _left(supply, stuck)
        remaining = [batch for batch in stuck if _stops(batch, stuck, free) is not None]
        if len(remaining) == len(stuck):
            break
        stuck = remaining
    if not any(batch is first for batch in stuck):
        return []
    path = [first]
    names: list[list[str]] = []
    while True:
        stop = _stops(path[-1], stuck, free)
        assert stop is not None
        following, between = stop
        names.append([path[-1].name, *between])
        for index, batch in enumerate(path):
            if batch is following:
                return [*(name for each in names[index:] for name in each), following.name]
        path.append(following)


def _left(supply: Resources, stuck: Sequence[CallingBatch]) -> Resources:
    """The resources left for batches that are not stuck."""
    left = dict(supply)
    for batch in stuck:
        for resource, count in batch.holds.items():
            left[resource] = left.get(resource, 0) - count
    return left


def _stops(batch: CallingBatch, stuck: Sequence[CallingBatch], free: Resources) -> tuple[CallingBatch, list[str]] | None:
    """A stuck batch that one of the batch's calls waits for, and the models in between."""
    for call in batch.calls:
        for resource, count in call.needs.items():
            if count > free.get(resource, 0):
                holder = next((other for other in stuck if other.holds.get(resource)), None)
                if holder is not None:
                    return holder, [call.name]
        if call.queued:
            behind = [other for other in stuck if other.model == call.model]
            bound = [other for other in behind if call.instance is not None and other.instance == call.instance]
            if bound:
                return bound[0], []
            if behind and call.instance is None and len(behind) >= behind[0].instances:
                return behind[0], []
        else:
            for other in stuck:
                if call.request in other.requests:
                    return other, []
    return None
