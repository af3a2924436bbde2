"""The targets of the engine's cores."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.chance import Chance
from fuzz.engine import circles, timers
from fuzz.target import Target
from tpy_data.engine.calls.core.call_circles import CallingBatch, find_circle
from tpy_data.engine.requests.handle import Resources
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.deadlines import Deadlines


def _find_without_supply(first: CallingBatch, batches: Sequence[CallingBatch], supply: Resources) -> list[str]:
    """Wrong on purpose: it believes that there is nothing of any resource."""
    return find_circle(first, batches, {})


class LateDeadlines(Deadlines):
    """Wrong on purpose: at its very time nobody is due yet."""

    def pop_due(self, now_ns: int) -> Ticket | None:
        return super().pop_due(now_ns - 1)


def _canary(chance: Chance) -> int:
    return circles.run(chance, _find_without_supply)


def _late(chance: Chance) -> int:
    return timers.run(chance, LateDeadlines)


CIRCLES = Target(
    name="call_circles", invariant=circles.INVARIANT, run=circles.run, smoke_examples=8000, rules=("stuck", "goes on")
)
CIRCLES_CANARY = Target(
    name="call_circles_canary",
    invariant="a search that finds circles where resources are left is found out",
    run=_canary,
    smoke_examples=500,
    must_fail=True,
)
DEADLINES = Target(
    name="deadlines",
    invariant=timers.INVARIANT,
    run=timers.run,
    smoke_examples=1500,
    rules=("add", "discard", "due", "nothing due"),
)
DEADLINES_CANARY = Target(
    name="deadlines_canary",
    invariant="deadlines that are met late are found out",
    run=_late,
    smoke_examples=100,
    must_fail=True,
)
