"""Calls from model to model that wait for each other in a circle: none of them would ever end.

A batch that calls cannot end before its calls, and keeps its instance until then. A call that is queued cannot begin before an
instance of its model is free. So batches are stuck when each of them has a call that is

* queued at a model whose instances are all taken by stuck batches, or bound to the instance of one (a live sequence), or
* being executed in a stuck batch.

The largest such set is found by assuming all stuck and taking out, until nothing changes, who is not.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple


class WaitingRequest(NamedTuple):
    """A request of a call that has not ended. `request` is its identity, `model` that of the version that has it. `instance` is
    set for one that only this instance may run."""

    request: int
    model: Hashable
    queued: bool
    instance: int | None = None


class CallingBatch(NamedTuple):
    """A batch in execution that waits for `calls`. `requests` are the identities of its own; `instance` where it runs, as far as
    that is known."""

    name: str
    model: Hashable
    instances: int
    """How many instances take work of the model's queue."""
    requests: frozenset[int]
    calls: Sequence[WaitingRequest]
    instance: int | None = None


def find_circle(first: CallingBatch, batches: Sequence[CallingBatch]) -> list[str]:
    """The names of the models around a circle that `first` waits for, beginning and ending with the same; empty when it can go
    on. `first` is one of `batches`."""
    stuck = list(batches)
    while True:
        remaining = [batch for batch in stuck if _stops(batch, stuck) is not None]
        if len(remaining) == len(stuck):
            break
        stuck = remaining
    if not any(batch is first for batch in stuck):
        return []
    path = [first]
    while True:
        following = _stops(path[-1], stuck)
        assert following is not None
        for index, batch in enumerate(path):
            if batch is following:
                return [each.name for each in [*path[index:], following]]
        path.append(following)


def _stops(batch: CallingBatch, stuck: Sequence[CallingBatch]) -> CallingBatch | None:
    """A stuck batch that one of the batch's calls waits for."""
    for call in batch.calls:
        if call.queued:
            behind = [other for other in stuck if other.model == call.model]
            bound = [other for other in behind if call.instance is not None and other.instance == call.instance]
            if bound:
                return bound[0]
            if behind and call.instance is None and len(behind) >= behind[0].instances:
                return behind[0]
        else:
            for other in stuck:
                if call.request in other.requests:
                    return other
    return None
