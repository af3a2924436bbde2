"""Calls that wait in a circle, against brute force over all sets of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from fuzz.chance import Chance
from fuzz.target import Violation
from tpy_data.engine.calls.core.call_circles import CallingBatch, find_circle
from tpy_data.engine.requests.handle import Resources, WaitingRequest
from tpy_data.schedulers.core.rate_limiter import Resource

INVARIANT = (
    "a batch is refused exactly when it is in a set of batches of which each has a call that, as long as all others of the set"
    " keep what they have, can never begin or end; the circle that is named is one of models of that set, from one to itself"
)
_RESOURCES: tuple[Resource, ...] = (("A", 0), ("B", None))

Find = Callable[[CallingBatch, Sequence[CallingBatch], Resources], list[str]]


def is_blocked(call: WaitingRequest, stuck: Sequence[CallingBatch], supply: Resources) -> bool:
    """The rule of the docstring, word by word."""
    for resource, count in call.needs.items():
        held = sum(batch.holds.get(resource, 0) for batch in stuck)
        if held and count > supply.get(resource, 0) - held:
            return True
    if not call.queued:
        return any(call.request in batch.requests for batch in stuck)
    there = [batch for batch in stuck if batch.model == call.model]
    if call.instance is not None:
        return any(batch.instance == call.instance for batch in there)
    return bool(there) and len(there) >= there[0].instances


def stuck_batches(batches: Sequence[CallingBatch], supply: Resources) -> set[int]:
    """Indices of the batches that are in any set that holds itself up."""
    stuck: set[int] = set()
    for size in range(1, len(batches) + 1):
        for some in combinations(range(len(batches)), size):
            these = [batches[index] for index in some]
            if all(any(is_blocked(call, these, supply) for call in batch.calls) for batch in these):
                stuck.update(some)
    return stuck


def run(chance: Chance, find: Find = find_circle) -> int:
    """One moment of a few models that call each other."""
    models = "abc"
    instances = {model: chance.choice((1, 1, 2, 3)) for model in models}
    supply: dict[Resource, int] = {resource: chance.randint(1, 4) for resource in _RESOURCES}
    batches: list[CallingBatch] = []
    for index in chance.rounds((2, 4, 5)):
        model = chance.choice(models)
        holds = {resource: chance.randint(1, 2) for resource in _RESOURCES if chance.random() < 0.2}
        batches.append(
            CallingBatch(
                name=model,
                model=model,
                instances=instances[model],
                requests=frozenset({index}),
                calls=[_call(chance, models) for _ in range(chance.choice((0, 1, 1, 2)))],
                instance=chance.choice((None, 0, 1, 2)),
                holds=holds,
            )
        )
    stuck = stuck_batches(batches, supply)
    for index, batch in enumerate(batches):
        names = find(batch, batches, supply)
        if bool(names) is not (index in stuck):
            raise Violation(f"batch {index} of {batches}, {supply}: named {names}, stuck are {stuck}")
        known = {each.name for each in batches} | {call.name for each in batches for call in each.calls}
        if names and (len(names) < 2 or names[0] != names[-1] or not known.issuperset(names)):
            raise Violation(f"no circle: {names}")
        chance.took("stuck" if names else "goes on")
    return len(batches)


def _call(chance: Chance, models: str) -> WaitingRequest:
    model = chance.choice(models)
    queued = chance.random() < 0.7
    return WaitingRequest(
        request=chance.randrange(6),
        model=model,
        queued=queued,
        instance=chance.choice((None, None, 0, 1, 2)) if queued else None,
        needs={resource: chance.randint(1, 3) for resource in _RESOURCES if queued and chance.random() < 0.2},
        name=model,
    )
