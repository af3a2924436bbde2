"""Settling beside a naive list of all sights: a sight is used when it is new and has been the same for the settling time."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.target import Violation
from tpy.ids import ModelId
from tpy_control.core.picture import Glance, ModelLocation
from tpy_control.core.settling import Settling, Sight

INVARIANT = (
    "a sight of a directory is used when it differs from the one used last and every look for the settling time has shown it,"
    " never before; the next deadline is when the first such time is over"
)
_SIGHTS = [
    Sight(),
    *(Sight((ModelLocation(repository, "m"),), Glance(error=error)) for repository in "xy" for error in ("", "e")),
]


class _Naive:
    """All that was ever seen of one model."""

    def __init__(self) -> None:
        self.used = Sight()
        self.looks: list[tuple[int, Sight]] = []
        """Since the last use."""

    def since_ns(self) -> int | None:
        """Since when the last sight has been the same; None where there is nothing new."""
        if not self.looks or self.looks[-1][1] == self.used:
            return None
        at_ns, last = self.looks[-1]
        for before_ns, sight in reversed(self.looks):
            if sight != last:
                break
            at_ns = before_ns
        return at_ns


def run_settling(chance: Chance, settling_of: type[Settling] = Settling) -> int:
    """A random history; returns its number of steps."""
    settle_ns = chance.choice((0, 3, 10))
    core = settling_of(settle_ns)
    naive = {ModelId(name): _Naive() for name in "ab"}
    now_ns = steps = 0
    for _ in chance.rounds((50, 60, 70)):
        now_ns += chance.choice((0, 1, 3, 10))
        model = chance.choice(list(naive))
        sight = chance.choice(_SIGHTS)
        one = naive[model]
        if one.looks and chance.random() < 0.6:
            sight = one.looks[-1][1]
        one.looks.append((now_ns, sight))
        since_ns = one.since_ns()
        due = since_ns is not None and now_ns - since_ns >= settle_ns
        if core.look(model, sight, now_ns) is not due:
            raise Violation(f"{model} at {now_ns}: looked {one.looks}, used {one.used}: to be used now should be {due}")
        chance.took("settled" if due else "waits" if since_ns is not None else "nothing new")
        if due and chance.random() < 0.9:
            one.used, one.looks = sight, []
            core.use(model, sight)
        waiting = [since + settle_ns for each in naive.values() if (since := each.since_ns()) is not None]
        if core.next_deadline_ns() != min(waiting, default=None):
            raise Violation(f"next deadline {core.next_deadline_ns()}, expected {min(waiting, default=None)}")
        steps += 1
    return steps
