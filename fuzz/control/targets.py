"""The targets of the control plane."""

from __future__ import annotations

from collections.abc import Collection

from fuzz.chance import Chance
from fuzz.control import debounce_trial, store_trial
from fuzz.control.store_trial import run_store
from fuzz.control.trial import INVARIANT, VERSIONS, ControlTrial, Settings
from fuzz.target import Target
from tpy.ids import Version
from tpy.state import ModelStateStore
from tpy_control.core.candidate import Candidate
from tpy_control.core.control import Action, ControlCore

_ACTS = ("look", "load", "load", "unload", "fail", "fail", "fail and load", "restart", "newest answers")


def run_control(chance: Chance, core_of: type[ControlCore] = ControlCore) -> int:
    """A random history; returns its number of steps."""
    trial = ControlTrial(core_of, chance.taken)
    steps = 0
    for _ in chance.rounds((50, 60, 70)):
        steps += 1
        name = chance.choice("ab")
        if chance.random() < 0.5:
            trial.change(name, _change(chance), chance.choice(("look", "look", "load", "load", "nothing")))
        elif chance.random() < 0.2:
            trial.answer(name, chance.choice(VERSIONS))
        else:
            trial.act(name, chance.choice(_ACTS))
    return steps


def _change(chance: Chance) -> tuple[object, ...]:
    rule = chance.random()
    if rule < 0.35:
        return ("version", chance.choice(VERSIONS), chance.choice("xy"))
    if rule < 0.5:
        return ("no version", chance.choice(VERSIONS))
    if rule < 0.7:
        return ("config", _settings(chance))
    if rule < 0.85:
        return ("shared", chance.choice("xy"))
    return ("gone",)


def _settings(chance: Chance) -> Settings:
    policies: tuple[str | int | tuple[int, ...], ...] = ("all", 1, 2, (1,), (0, 3))
    return Settings(
        policy=chance.choice(policies),
        instances=chance.randint(1, 2),
        batch=chance.choice((0, 8)),
        broken=chance.random() < 0.12,
    )


class EasyCore(ControlCore):
    """Wrong on purpose: what has failed is not tried again."""

    def apply(
        self,
        candidate: Candidate,
        *,
        why: str,
        by_name: bool = True,
        failed: Collection[Version] = (),
        apply_again: bool = False,
        reload_touched: bool = False,
        answering: Version | None = None,
    ) -> list[Action]:
        return super().apply(candidate, why=why, by_name=by_name, apply_again=apply_again, answering=answering)


class _Lenient(ModelStateStore):
    """Wrong on purpose: a rejection that is withdrawn is not a change."""

    def _touch(self) -> None:
        before = len(self.__dict__.get("_seen_rejections", ()))
        self.__dict__["_seen_rejections"] = dict(self._rejections)
        if len(self._rejections) >= before:
            super()._touch()


def _canary(chance: Chance) -> int:
    return run_control(chance, EasyCore)


def _store_canary(chance: Chance) -> int:
    return run_store(chance, _Lenient)


CONTROL = Target(
    name="control_core",
    invariant=INVARIANT,
    run=run_control,
    smoke_examples=1200,
    rules=(
        "disk: version",
        "disk: no version",
        "disk: config",
        "disk: shared",
        "disk: gone",
        "look",
        "load",
        "unload",
        "fail",
        "fail and load",
        "restart",
        "refused",
        "nothing",
        "answer",
        "newest answers",
        "kept beyond the policy",
    ),
)
CANARY = Target(
    name="control_canary",
    invariant="a core that never loads anew what has failed is found out",
    run=_canary,
    smoke_examples=100,
    must_fail=True,
)
STORE = Target(
    name="state_store",
    invariant=store_trial.INVARIANT,
    run=run_store,
    smoke_examples=1500,
    rules=(
        *(
            f"{before} -> {after}"
            for before, all_of in store_trial.MOVES.items()
            for after in all_of.split()
            if after != "absent"
        ),
        "illegal move",
        "forget",
        "illegal forget",
        "answer",
        "put",
        "reject",
        "withdraw",
        "remove",
        "next generation",
        "second writer",
    ),
)
STORE_CANARY = Target(
    name="state_store_canary",
    invariant="a store that tells nobody of a withdrawn rejection is found out",
    run=_store_canary,
    smoke_examples=100,
    must_fail=True,
)
DEBOUNCE = Target(
    name="control_debounce",
    invariant=debounce_trial.INVARIANT,
    run=debounce_trial.run_debounce,
    smoke_examples=5000,
    rules=("settled", "waits", "nothing new"),
)
