"""The ensemble targets: seeded histories of `EnsembleCore` on random graphs."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.schedulers.ensemble_trial import INVARIANT, EnsembleTrial, random_graph
from fuzz.target import Target
from tpy.limits import ENSEMBLE_STEP_WAIT_NS_MAX
from tpy_data.schedulers.core.ensemble import End, EnsembleCore


def run_history(chance: Chance, *, error: int = 0) -> int:
    """Drive a trial through a random history; returns its number of steps. `error` is how many places too many the core has."""
    graph = random_graph(chance)
    inflight_max = chance.choice((0, 0, 1, 2, 3)) if not error else 1
    core = EnsembleCore(len(graph.steps), inflight_max=inflight_max + error if inflight_max else 0)
    trial = EnsembleTrial(core, graph, inflight_max=inflight_max, taken=chance.taken)
    for _ in chance.rounds((50, 80, 300)):
        random_rule(chance, trial)
    if chance.random() < 0.2:
        trial.stop()
    trial.finish()
    return trial.steps


def random_rule(chance: Chance, trial: EnsembleTrial) -> None:
    """One thing that can happen."""
    rule = chance.random()
    if rule < 0.15 or not trial.requests:
        trial.submit(chance)
    elif rule < 0.78 and trial.running:
        running = chance.choice(list(trial.running.values()))
        if not running.paused or chance.random() < 0.3:  # what was sent before the pause still comes
            trial.respond(running, final=chance.random() < 0.3, data=chance.random() < 0.8)
    elif rule < 0.81 and trial.running:
        trial.fail(chance.choice(list(trial.running.values())), final=chance.random() < 0.6)
    elif rule < 0.84:
        trial.cancel(chance.choice(trial.requests))
    elif rule < 0.89:
        trial.pause(chance.choice(trial.requests))
    elif rule < 0.96:
        trial.resume(chance.choice(trial.requests))
    else:
        trial.advance(chance.choice((1, 3, 10, ENSEMBLE_STEP_WAIT_NS_MAX)))


def _canary(chance: Chance) -> int:
    return run_history(chance, error=1)


RULES = (
    "submit",
    "respond",
    "fail",
    "cancel",
    "pause",
    "resume",
    "advance",
    "stop",
    "answered",
    "step paused",
    End.FAILED.name,
    End.TIMED_OUT.name,
    End.STOPPING.name,
)
GRAPH = Target(name="ensemble_graph", invariant=INVARIANT, run=run_history, smoke_examples=1500, rules=RULES)
CANARY = Target(
    name="ensemble_canary", invariant="Wrong on purpose: one place too many.", run=_canary, smoke_examples=60, must_fail=True
)
