"""The targets of rollouts: random histories of requests and time, beside a model that keeps every request of a step in a list."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.target import Target, Violation
from tpy.config.rollout import RolloutPlan, RolloutShadow, RolloutStep
from tpy.units import NS_PER_S
from tpy_data.engine.rollouts.core.rollout import Arm, Decision, RolloutCore, RolloutState

_STEPS = (30, 60, 120)
_RULES = (
    "new",
    "old",
    "failed",
    "compared",
    "differs",
    "advanced",
    "by another plan",
    "promoted",
    "rolled back",
    "late",
    "again",
    "of an earlier step",
)
_INVARIANT = "a rollout's shares, steps and gates follow from its requests and the time"


class ForgetfulCore(RolloutCore):
    """Wrong on purpose: the first step's requests still count in the second."""

    def _advance(self, now_ns: int, reason: str) -> Decision:
        counts = self.counts
        decision = super()._advance(now_ns, reason)
        if self.step == 1:
            self.counts = counts
        return decision


def _require(seen: object, expected: object, what: str) -> None:
    if seen != expected:
        raise Violation(f"{what}: {seen}, expected {expected}")


def _random_plan(chance: Chance) -> RolloutPlan:
    shares = sorted(chance.choice((1, 5, 10, 12.5, 50, 99, 100)) for _ in range(chance.randint(1, 4)))
    return RolloutPlan(
        steps=tuple(RolloutStep(share, chance.choice((0, 0, 1, 1, 10, 10, 1e8))) for share in shares),
        max_error_percent=chance.choice((None, 0, 1, 10, 100)),
        min_requests=chance.choice((1, 1, 2, 2, 5, 5, 20, 20, 10**9)),
        shadow=RolloutShadow(chance.choice((1, 50, 100)), chance.choice((0, 0, 1, 1, 1e8)), chance.choice((None, 0, 10, 100)))
        if chance.random() < 0.5
        else None,
    )


def run_history(chance: Chance, core: RolloutCore) -> int:
    """Drive a core through a random history beside the naive model; returns the number of its steps."""
    plan, now_ns, since_ns, step, state = core.plan, 0, 0, 0, RolloutState.RUNNING
    stages = [*([] if plan.shadow is None else [plan.shadow]), *plan.steps]
    new: list[bool] = []
    compared: list[bool] = []
    chosen: list[Arm] = []
    rounds = 0
    for _ in chance.rounds(_STEPS):
        rounds += 1
        if chance.random() < 0.7:
            arm = core.choose()
            failed = chance.random() < 0.1
            late = chance.choice((0, 0, 0, 0, 0, 0, 0, 1))
            decision = core.ended(arm, core.begun - late, failed=failed, latency_ns=chance.randrange(NS_PER_S))
            chance.took("of an earlier step" if late else arm.value)
            chosen.append(arm)
            due = False
            if arm is Arm.NEW and state is RolloutState.RUNNING and not late:
                new.append(failed)
                most = plan.max_error_percent
                due = failed and most is not None and sum(new) * 100 > most * max(len(new), plan.min_requests)
                chance.took("failed" if failed else arm.value)
            _require(decision is not None, due, f"a decision at an end: {decision}")
            if due:
                state = RolloutState.ROLLED_BACK
                chosen = []
                chance.took("rolled back")
        elif chance.random() < 0.5:
            differs = chance.random() < 0.1
            late = chance.choice((0, 0, 0, 0, 0, 0, 0, 1))
            decision = core.answers_compared("differs" if differs else "", core.begun - late)
            due = False
            counts = state is RolloutState.RUNNING and step < len(stages) and not late
            if counts and (shadow := stages[step]) is plan.shadow:
                compared.append(differs)
                most = shadow.max_disagreement_percent
                due = differs and most is not None and sum(compared) * 100 > most * max(len(compared), plan.min_requests)
                chance.took("differs" if differs else "compared")
            _require(decision is not None, due, f"a decision at a comparison: {decision}")
            if due:
                state = RolloutState.ROLLED_BACK
                chosen = []
                chance.took("rolled back")
        elif chance.random() < 0.1:
            given = _random_plan(chance) if chance.random() < 0.5 else None
            core.restart(now_ns, "as asked", given)
            plan = given or plan
            stages = [*([] if plan.shadow is None else [plan.shadow]), *plan.steps]
            step, since_ns, state, new, compared, chosen = 0, now_ns, RolloutState.RUNNING, [], [], []
            chance.took("again" if given is None else "by another plan")
        else:
            now_ns += chance.choice((0, 1, NS_PER_S, 10 * NS_PER_S))
            decision = core.tick(now_ns)
            stage = stages[step] if step < len(stages) else stages[-1]
            is_time = now_ns - since_ns >= stage.seconds * NS_PER_S
            seen = compared if stage is plan.shadow else new
            due = state is RolloutState.RUNNING and is_time and len(seen) >= plan.min_requests
            chance.took("late" if is_time and not due else "new")
            _require(decision is not None, due, f"a decision at {now_ns} ns: {decision}")
            if due:
                step, since_ns, new, compared, chosen = step + 1, now_ns, [], [], []
                state = RolloutState.PROMOTED if step == len(stages) else state
                chance.took("promoted" if step == len(stages) else "advanced")
        _require(core.state, state, "the state")
        percent = {RolloutState.PROMOTED: 100.0, RolloutState.ROLLED_BACK: 0.0}.get(state)
        if percent is None:
            percent = 0.0 if stages[step] is plan.shadow else stages[step].percent
        share = percent
        _require(core.percent, share, "the share")
        _require(abs(sum(arm is Arm.NEW for arm in chosen) - len(chosen) * share / 100) <= 1, True, "shared out evenly")
    return rounds


def _run(chance: Chance) -> int:
    return run_history(chance, RolloutCore(_random_plan(chance), 0))


def _run_forgetful(chance: Chance) -> int:
    plan = RolloutPlan(steps=(RolloutStep(100, 0), RolloutStep(100, 0), RolloutStep(100, 0)), min_requests=2)
    return run_history(chance, ForgetfulCore(plan, 0))


ROLLOUT = Target(name="rollout", invariant=_INVARIANT, run=_run, smoke_examples=2000, rules=_RULES)
CANARY = Target(
    name="rollout_canary",
    invariant="a core that counts the requests of another step is found out",
    run=_run_forgetful,
    smoke_examples=100,
    must_fail=True,
)
