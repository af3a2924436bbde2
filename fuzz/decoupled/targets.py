"""The decoupled target: seeded histories of requests that get any number of responses."""

from __future__ import annotations

import trio
import trio.testing

from fuzz.chance import Chance
from fuzz.decoupled.trial import INVARIANT, Naive, Trial
from fuzz.target import Target, Violation


def run(chance: Chance) -> int:
    """One history; its number of steps."""
    return _run_history(chance, forgets=False)


def run_canary(chance: Chance) -> int:
    """The same with sinks that lose a response."""
    return _run_history(chance, forgets=True)


def _run_history(chance: Chance, *, forgets: bool) -> int:
    clock = trio.testing.MockClock()
    core = trio._core._run
    deterministic = core._ALLOW_DETERMINISTIC_SCHEDULING
    # Trio's own choices follow from the history's too, so that it can be played again.
    core._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    core._r.seed(chance.randrange(2**16))
    try:
        return trio.run(_run, chance, clock, forgets, clock=clock)
    except BaseExceptionGroup as group:
        for violation in group.exceptions:
            if isinstance(violation, Violation):
                raise violation from None
        raise
    finally:
        core._ALLOW_DETERMINISTIC_SCHEDULING = deterministic  # type: ignore[misc]


async def _run(chance: Chance, clock: trio.testing.MockClock, forgets: bool) -> int:
    async with trio.open_nursery() as nursery:
        trial = Trial(chance, clock, forgets=forgets)
        nursery.start_soon(trial.engine.run)
        await trio.testing.wait_all_tasks_blocked()
        for _ in chance.rounds((50, 60, 70)):
            _random_rule(chance, trial)
            if chance.random() < 0.6:
                await trial.settle()
            if chance.random() < 0.2:
                clock.jump(chance.choice((0.5, 1.0, 3.0)))
                await trial.settle()
        await trial.finish()
        nursery.cancel_scope.cancel()
    return trial.steps


def _random_rule(chance: Chance, trial: Trial) -> None:
    rule = chance.random()
    if not trial.requests or (rule < 0.2 and not trial.stopped):
        if not trial.stopped:
            trial.submit(chance.choice((None, None, 1.0, 4.0)), pause_at=chance.choice((-1, -1, 1, 3)))
        return
    naive: Naive = chance.choice(trial.requests)
    if rule < 0.35:
        trial.execute(fails=chance.random() < 0.15, before=[chance.choice((0, 0, 1, 3)) for _ in range(4)])
    elif rule < 0.75:
        for _ in range(chance.choice((1, 1, 2, 5, 100))):
            trial.send(naive, final=chance.random() < 0.1, error=chance.random() < 0.1)
        if chance.random() < 0.1:
            trial.send(naive, final=True, alone=True)
    elif rule < 0.9:
        trial.pause(naive, paused=chance.random() < 0.5)
    elif rule < 0.98:
        trial.cancel(naive)
    elif chance.random() < 0.3:
        trial.stop()


RULES = (
    "submit",
    "execute",
    "a batch fails",
    "send",
    "error",
    "final",
    "final alone",
    "pause",
    "resume",
    "cancel",
    "stop",
)
DECOUPLED = Target(name="decoupled", invariant=INVARIANT, run=run, smoke_examples=600, rules=RULES)
CANARY = Target(
    name="decoupled_canary",
    invariant="a caller that loses a response is found out",
    run=run_canary,
    smoke_examples=100,
    must_fail=True,
)
