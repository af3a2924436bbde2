"""The debouncer beside a naive list of all results: a new result is used when it has been the same for the settle time."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.target import Violation
from tpy.ids import ModelId
from tpy_control.core.debounce import Debouncer, PollResult
from tpy_control.core.scan import DirectoryFingerprint, ModelLocation

INVARIANT = (
    "a result of a directory is used when it differs from the one used last and every poll for the settle time has shown it,"
    " never before; the next deadline is when the first such time is over"
)
_RESULTS = [
    PollResult(),
    *(
        PollResult((ModelLocation(repository, "m"),), DirectoryFingerprint(error=error))
        for repository in "xy"
        for error in ("", "e")
    ),
]


class _Naive:
    """All polls of one model."""

    def __init__(self) -> None:
        self.used = PollResult()
        self.polls: list[tuple[int, PollResult]] = []
        """Since the last use."""

    def since_ns(self) -> int | None:
        """The time since which the last result has been the same; None where there is nothing new."""
        if not self.polls or self.polls[-1][1] == self.used:
            return None
        at_ns, last = self.polls[-1]
        for before_ns, result in reversed(self.polls):
            if result != last:
                break
            at_ns = before_ns
        return at_ns


def run_debounce(chance: Chance, debouncer_of: type[Debouncer] = Debouncer) -> int:
    """A random history; returns its number of steps."""
    settle_ns = chance.choice((0, 3, 10))
    core = debouncer_of(settle_ns)
    naive = {ModelId(name): _Naive() for name in "ab"}
    now_ns = steps = 0
    for _ in chance.rounds((50, 60, 70)):
        now_ns += chance.choice((0, 1, 3, 10))
        model = chance.choice(list(naive))
        result = chance.choice(_RESULTS)
        one = naive[model]
        if one.polls and chance.random() < 0.6:
            result = one.polls[-1][1]
        one.polls.append((now_ns, result))
        since_ns = one.since_ns()
        due = since_ns is not None and now_ns - since_ns >= settle_ns
        if core.observe(model, result, now_ns) is not due:
            raise Violation(f"{model} at {now_ns}: polled {one.polls}, used {one.used}: to be used now should be {due}")
        chance.took("settled" if due else "waits" if since_ns is not None else "nothing new")
        if due and chance.random() < 0.9:
            one.used, one.polls = result, []
            core.mark_used(model, result)
        waiting = [since + settle_ns for each in naive.values() if (since := each.since_ns()) is not None]
        if core.next_deadline_ns() != min(waiting, default=None):
            raise Violation(f"next deadline {core.next_deadline_ns()}, expected {min(waiting, default=None)}")
        steps += 1
    return steps
