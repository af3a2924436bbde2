"""The targets of the C boundary."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.native import trial
from fuzz.target import Target


def _canary(chance: Chance) -> int:
    trial.host().execute([trial.SOUND])
    return trial.run(chance, again=False)


HOSTILE = Target(name="native_hostile", invariant=trial.INVARIANT, run=trial.run, smoke_examples=15, rules=trial.RULES)
CANARY = Target(
    name="native_canary",
    invariant="a worker that is not started again is found out",
    run=_canary,
    smoke_examples=30,
    must_fail=True,
)
