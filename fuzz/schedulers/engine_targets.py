"""The targets of the engine core: seeded histories against the reference."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.schedulers.engine_trial import INVARIANT, EngineTrial
from fuzz.schedulers.targets import random_options
from fuzz.target import Target
from tpy_data.generation.core.cost import Cost
from tpy_data.schedulers.core.contract import Outcome, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.engine_core import EngineCore

_STEPS = (40, 60, 80)
_RULES = (
    *("add_instance", "remove_instance", "retire_instance", "submit", "cancel", "done", "revoked", "advance"),
    *("refuse_waiting", "refuse_executing", "stop", "stopped", "full", "retired"),
    *(Outcome.TIMED_OUT.name, Outcome.STOPPING.name, Outcome.NO_INSTANCE.name),
)


class GreedyCore(EngineCore):
    """Wrong on purpose: it frees the room of a ticket when the engine takes it, not when it is over."""

    def done(self, instance: int, now_ns: int, times_ns: tuple[int, ...] = (0,)) -> None:  # type: ignore[override]  # fewer kinds
        room = self._rooms.get(instance)
        taken: list[Ticket] = [] if room is None else list(room.given)[: len(times_ns)]
        super().done(instance, now_ns, times_ns)
        for ticket in taken:
            if room is not None and room.remove(ticket):
                room.held[ticket] = None  # it is there, and costs nothing


def run_history(chance: Chance, core: EngineCore, options: DynamicOptions) -> int:
    """Drive a trial through a random history; returns its number of steps."""
    trial = EngineTrial(core, options, chance.taken)
    for _ in range(chance.randrange(3)):
        _add(chance, trial)
    for _ in chance.rounds(_STEPS):
        if chance.random() < 0.5:
            trial.now_ns += chance.choice((1, 1, 2, 4, 12))
        _random_rule(chance, trial)
    if chance.random() < 0.3:
        trial.stop()
    trial.finish()
    return len(trial.steps)


def _add(chance: Chance, trial: EngineTrial) -> None:
    trial.add_instance(chance.choice((1, 2, 4)), chance.choice((0, 5, 20)))


def _random_rule(chance: Chance, trial: EngineTrial) -> None:
    rule = chance.random()
    if rule < 0.45:
        trial.submit(
            cost=Cost(chance.choice((1, 1, 1, 2, 5)), chance.choice((1, 2, 4, 9, 30))),
            priority=chance.randint(0, len(trial.options.levels) + 1),
            timeout_ns=chance.choice((0, 0, 2, 5, 8)),
            deadline_in_ns=chance.choice((None, None, None, 0, 3, 7)),
        )
    elif rule < 0.6 and trial.given:
        trial.take(chance.choice(list(trial.given)), chance.choice((1, 1, 2, 4)))
    elif rule < 0.78 and trial.live:
        trial.end(chance.choice(trial.live))
    elif rule < 0.88:
        trial.advance_to_deadline()
    elif rule < 0.92:
        trial.advance()
    elif rule < 0.94 and trial.engines:
        trial.remove_instance(chance.choice(list(trial.engines)))
    elif rule < 0.955 and trial.engines:
        trial.retire_instance(chance.choice(list(trial.engines)))
    elif rule < 0.985:
        _add(chance, trial)
    elif rule < 0.99:
        trial.refuse_waiting()
    elif rule < 0.995:
        trial.refuse_executing()
    elif rule < 0.997:
        trial.stop()


def _run(chance: Chance) -> int:
    options = random_options(chance)
    return run_history(chance, EngineCore(options), options)


def _run_greedy(chance: Chance) -> int:
    options = DynamicOptions()
    return run_history(chance, GreedyCore(options), options)


ENGINE = Target(name="scheduler_engine", invariant=INVARIANT, run=_run, smoke_examples=2000, rules=_RULES)
CANARY = Target(
    name="scheduler_engine_canary",
    invariant="a core that gives away room that is in use is found out",
    run=_run_greedy,
    smoke_examples=100,
    must_fail=True,
)
