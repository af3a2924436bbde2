"""RolloutCore: shares, steps and gates, beside a naive model that counts over lists."""

from __future__ import annotations

import itertools
import math
import random
import re

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tpy.config import ModelConfig
from tpy.config.model_config import ModelParameter, SequenceBatching, TransactionPolicy
from tpy.config.rollout import RolloutPlan, RolloutShadow, RolloutStep, rollout_plan
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_data.engine.rollouts.core.rollout import Arm, RolloutCore, RolloutState

WITH_SHADOW = RolloutPlan(
    steps=(RolloutStep(1, 10), RolloutStep(10, 10), RolloutStep(50, 10)),
    min_requests=20,
    shadow=RolloutShadow(percent=50, seconds=10),
)
PLAN = RolloutPlan(steps=(RolloutStep(1, 10), RolloutStep(10, 10), RolloutStep(50, 10)), min_requests=20)


def parsed(text: str) -> RolloutPlan | None:
    return rollout_plan(ModelConfig(name="m", parameters={"rollout": ModelParameter(string_value=text)}))


def test_a_plan_is_read_with_its_defaults() -> None:
    assert rollout_plan(ModelConfig(name="m")) is None
    plan = parsed('{"steps": [{"percent": 5}], "sticky": "parameter:user"}')
    assert plan == RolloutPlan(steps=(RolloutStep(5, 60),), sticky="parameter:user")
    assert (plan.max_error_percent, plan.min_requests, plan.sticky_parameter) == (1.0, 100, "user")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "Expected `object`, got `array`"),
        ('{"steps": []}', "length >= 1"),
        ('{"steps": [{"percent": 0}]}', "> 0"),
        ('{"steps": [{"percent": 101}]}', "<= 100"),
        ('{"steps": [{"percent": 50}, {"percent": 10}]}', "the percents of the steps are 50, 10, expected them to rise"),
        ('{"gates": {}}', "unknown field `gates`"),
        ('{"sticky": "user"}', "sticky is 'user', expected correlation_id, request_id or parameter:NAME"),
        ('{"sticky": "a\\nb\\u0000c"}', "sticky is 'a\\nb\\x00c', expected correlation_id"),
        (f'{{"sticky": "{"x" * 8000}"}}', f"sticky is '{'x' * 100}... (7900 more characters)', expected correlation_id"),
        ('{"a\\nb": 1}', "unknown field `a\\nb`"),
        ('{"max_p99_ms": 0}', "> 0"),
        ('{"min_requests": 0}', ">= 1"),
        ('{"shadow": {"percent": 0}}', "> 0"),
        ('{"shadow": {"rtol": -1}}', ">= 0"),
        ('{"shadow": {"tolerance": 1}}', "unknown field `tolerance`"),
        ('{"steps": [{"percent": 1, "seconds": 1e300}]}', "Expected `float` <= 100000000.0 - at `$.steps[0].seconds`"),
        ('{"shadow": {"seconds": 1e9}}', "<= 100000000.0 - at `$.shadow.seconds`"),
        ('{"shadow": {"rtol": 1e31}}', "<= 1e+30"),
        ('{"shadow": {"atol": 1e31}}', "<= 1e+30"),
        ('{"min_requests": 1000000001}', "Expected `int` <= 1000000000 - at `$.min_requests`"),
        (f'{{"min_requests": {2**64}}}', "<= 1000000000"),
        (f'{{"min_requests": {"9" * 400}}}', "<= 1000000000"),
        ('{"max_p99_ms": 1e12}', "<= 100000000000.0"),
        ('{"max_p99_ratio": 1e12}', "<= 100000000000.0"),
        ('{"max_error_percent": 101}', "<= 100.0"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parsed(text)


def test_the_largest_numbers_of_a_plan_can_be_counted_and_sent() -> None:
    plan = RolloutPlan(
        steps=(RolloutStep(100, 1e8),),
        min_requests=10**9,
        max_p99_ms=1e11,
        max_p99_ratio=1e11,
        shadow=RolloutShadow(seconds=1e8, rtol=1e30, atol=1e30),
    )
    text = msgspec.json.encode(plan)
    assert parsed(text.decode()) == plan
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=RolloutPlan) == plan
    core = RolloutCore(plan, 0)
    assert core.tick(10**17) is None, "none was compared"
    assert core.due_ns() == 10**17
    assert core.answers_compared("differs", core.begun) is None, "one of a thousand million"
    assert core.ended(Arm.NEW, core.begun, failed=True, latency_ns=1) is None


def test_a_refusal_repeats_no_long_name() -> None:
    with pytest.raises(ValueError, match=r"^Object contains unknown field `x+\.\.\. \(\d+ more characters\)$") as refused:
        parsed(f'{{"{"x" * 8000}": 1}}')
    assert len(str(refused.value)) < 1100


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(name="m", model_transaction_policy=TransactionPolicy(decoupled=True)),
        ModelConfig(name="m", sequence_batching=SequenceBatching()),
    ],
    ids=["decoupled", "sequences"],
)
def test_models_with_several_answers_or_states_have_no_shadow(config: ModelConfig) -> None:
    config = msgspec.structs.replace(config, parameters={"rollout": ModelParameter(string_value='{"shadow": {}}')})
    with pytest.raises(ValueError, match="this model is decoupled or has sequences"):
        rollout_plan(config)


@pytest.mark.parametrize("percent", [1, 10, 12.5, 50, 99, 100])
def test_requests_are_shared_out_evenly(percent: float) -> None:
    core = RolloutCore(RolloutPlan(steps=(RolloutStep(percent),)), 0)
    chosen = [core.choose() is Arm.NEW for _ in range(1000)]
    for begin, end in ((0, 1000), (0, 100), (250, 500), (990, 1000)):
        assert abs(sum(chosen[begin:end]) - (end - begin) * percent / 100) <= 1


def test_a_key_stays_with_its_version_and_none_goes_back() -> None:
    core = RolloutCore(RolloutPlan(steps=(RolloutStep(10, 0), RolloutStep(50, 0)), min_requests=1), 0)
    keys = [b"user %d" % number for number in range(4000)]
    first = {key for key in keys if core.choose(key) is Arm.NEW}
    assert {key for key in keys if core.choose(key) is Arm.NEW} == first
    assert abs(len(first) - 400) < 80
    core.ended(Arm.NEW, core.begun, failed=False, latency_ns=1)
    assert core.tick(1) is not None
    second = {key for key in keys if core.choose(key) is Arm.NEW}
    assert first < second
    assert abs(len(second) - 2000) < 150


def test_failures_roll_back_at_once_and_within_the_share() -> None:
    core = RolloutCore(PLAN, 0)
    assert core.ended(Arm.OLD, core.begun, failed=True, latency_ns=1) is None, "the old version has no gate"
    decision = core.ended(Arm.NEW, core.begun, failed=True, latency_ns=1)
    assert decision is not None
    assert (decision.state, decision.percent) == (RolloutState.ROLLED_BACK, 0.0)
    assert decision.reason == "1 of 1 requests failed (100 %); at most 1 % of 20 are allowed"
    assert {core.choose() for _ in range(300)} == {Arm.OLD}
    assert core.ended(Arm.NEW, core.begun, failed=True, latency_ns=1) is None, "it is over"
    assert (core.tick(10**18), core.due_ns()) == (None, None)


def test_as_many_failures_as_the_gate_allows_are_none() -> None:
    core = RolloutCore(RolloutPlan(steps=(RolloutStep(10, 0),), max_error_percent=5, min_requests=100), 0)
    for number in range(100):
        assert core.ended(Arm.NEW, core.begun, failed=number < 5, latency_ns=1) is None
    assert core.ended(Arm.NEW, core.begun, failed=True, latency_ns=1) is not None


@pytest.mark.parametrize(
    ("gates", "reason"),
    [
        ({"max_p99_ms": 5}, "at most 5 ms are allowed"),
        ({"max_p99_ratio": 2}, "the old version's is"),
        ({"max_p99_ms": 50, "max_p99_ratio": 20}, ""),
    ],
)
def test_a_slow_version_is_rolled_back_at_the_end_of_the_step(gates: dict[str, float], reason: str) -> None:
    core = RolloutCore(RolloutPlan(steps=(RolloutStep(50, 10),), min_requests=10, **gates), 0)
    for _ in range(10):
        core.ended(Arm.OLD, core.begun, failed=False, latency_ns=NS_PER_MS)
        core.ended(Arm.NEW, core.begun, failed=False, latency_ns=10 * NS_PER_MS)
    assert core.tick(10 * NS_PER_S - 1) is None
    decision = core.tick(10 * NS_PER_S)
    assert decision is not None
    assert decision.state is (RolloutState.ROLLED_BACK if reason else RolloutState.PROMOTED)
    assert reason in decision.reason


def test_a_version_that_answers_otherwise_never_answers_a_request() -> None:
    core = RolloutCore(WITH_SHADOW, 0)
    assert (core.step, core.steps, core.percent) == (0, 4, 0.0)
    assert sum(core.copies() for _ in range(100)) == 50
    assert {core.choose() for _ in range(100)} == {Arm.OLD}
    assert core.answers_compared("", core.begun) is None
    decision = core.answers_compared("output 'Y' [0] is 2, was 1", core.begun)
    assert decision is not None
    assert (decision.state, decision.percent) == (RolloutState.ROLLED_BACK, 0.0)
    assert (
        decision.reason == "1 of 2 answers differ (50 %); at most 1 % of 20 are allowed; the last one: output 'Y' [0] is 2, was 1"
    )
    assert not any(core.copies() for _ in range(100))
    assert core.answers_compared("late", core.begun) is None


def test_a_version_that_fails_one_request_in_twenty_costs_few_of_them() -> None:
    """A thousand rollouts: all end, after two failures of the first hundred requests that it got, or few more of more."""
    chance = random.Random(1)
    plan = RolloutPlan(steps=(RolloutStep(10, 60), RolloutStep(50, 60)))
    seen, failed = [], []
    for _ in range(1000):
        core = RolloutCore(plan, 0)
        for number in itertools.count():
            arm = core.choose()
            core.ended(arm, core.begun, failed=arm is Arm.NEW and chance.random() < 0.05, latency_ns=1)
            core.tick(number * NS_PER_S // 100)
            if core.state is not RolloutState.RUNNING:
                break
        assert core.state is RolloutState.ROLLED_BACK
        seen.append(core.counts[Arm.NEW].ended)
        failed.append(core.counts[Arm.NEW].failed)
        assert failed[-1] <= 0.01 * max(seen[-1], 100) + 1, "no more than its share"
    assert sum(failed) / 1000 < 2.1
    assert sorted(seen)[500] < 100, "most are over before the gate has its hundred requests"


def test_a_restart_goes_on_with_its_step() -> None:
    core = RolloutCore(PLAN, 0, step=1)
    assert (core.step, core.percent) == (1, 10)
    assert RolloutCore(PLAN, 0, step=9).step == 2, "the plan may have fewer steps by now"


@pytest.mark.parametrize("plan", [PLAN, WITH_SHADOW])
def test_a_version_that_was_rolled_back_can_begin_again(plan: RolloutPlan) -> None:
    core = RolloutCore(plan, 0, step=2)
    core.ended(Arm.NEW, core.begun, failed=True, latency_ns=1)
    assert core.state is RolloutState.ROLLED_BACK
    decision = core.restart(50 * NS_PER_S, "as asked")
    assert (decision.state, decision.percent, decision.reason) == (RolloutState.RUNNING, core.percent, "as asked")
    assert (core.step, core.reason, core.counts[Arm.NEW].failed) == (0, "", 0)
    assert core.due_ns() == 60 * NS_PER_S, "a step lasts as long as at first"


LATE = st.sampled_from((0, 0, 0, 1, 2))
"""The steps that have begun since a request began."""


@pytest.mark.parametrize("plan", [PLAN, WITH_SHADOW])
def test_requests_of_an_earlier_step_do_not_count(plan: RolloutPlan) -> None:
    core = RolloutCore(plan, 0)
    before = core.begun
    core.roll_back("as asked")
    core.restart(NS_PER_S, "as asked")
    assert core.ended(Arm.NEW, before, failed=True, latency_ns=1) is None
    assert core.answers_compared("differs", before) is None
    assert (core.state, core.counts[Arm.NEW].ended, core.compared) == (RolloutState.RUNNING, 0, 0)


class Beside(RuleBasedStateMachine):
    """The core beside a model that keeps every request of the step. Step -1 is that of the shadow."""

    def __init__(self) -> None:
        super().__init__()
        self.core = RolloutCore(PLAN, 0)
        self.differences: list[bool] = []
        self.now_ns = 0
        self.since_ns = 0
        self.step: int | None = 0
        self.outcome = RolloutState.RUNNING
        self.new: list[tuple[bool, int]] = []

    @initialize(shadow=st.booleans())
    def has_a_shadow(self, shadow: bool) -> None:
        if shadow:
            self.core, self.step = RolloutCore(WITH_SHADOW, 0), -1

    @rule(count=st.integers(1, 30), differs=st.booleans(), late=LATE)
    def answers_are_compared(self, count: int, differs: bool, late: int) -> None:
        for number in range(count):
            found = differs and number == 0
            decision = self.core.answers_compared("differs" if found else "", self.core.begun - late)
            if self.outcome is RolloutState.RUNNING and self.step == -1 and not late:
                self.differences.append(found)
                if found and sum(self.differences) > 0.01 * max(len(self.differences), 20):
                    self.outcome = RolloutState.ROLLED_BACK
                    assert decision is not None
                    continue
            assert decision is None

    @rule(count=st.integers(1, 30), failed=st.booleans(), arm=st.sampled_from(Arm), latency_ns=st.integers(0, 10**10), late=LATE)
    def requests_end(self, count: int, failed: bool, arm: Arm, latency_ns: int, late: int) -> None:
        for number in range(count):
            fails = failed and number == 0
            decision = self.core.ended(arm, self.core.begun - late, failed=fails, latency_ns=latency_ns)
            if self.outcome is RolloutState.RUNNING and arm is Arm.NEW and not late:
                self.new.append((fails, latency_ns))
                bad = sum(each for each, _ in self.new)
                if fails and bad > 0.01 * max(len(self.new), 20):
                    self.outcome = RolloutState.ROLLED_BACK
                    assert decision is not None
                    continue
            assert decision is None

    @rule(seconds=st.floats(0, 20))
    def time_goes_on(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS_PER_S)
        decision = self.core.tick(self.now_ns)
        seen = self.differences if self.step == -1 else self.new
        due = self.now_ns - self.since_ns >= 10 * NS_PER_S and len(seen) >= 20
        if self.outcome is not RolloutState.RUNNING or not due:
            assert decision is None
            return
        assert decision is not None
        assert self.step is not None
        self.step, self.since_ns, self.new = self.step + 1, self.now_ns, []
        if self.step == 3:
            self.outcome = RolloutState.PROMOTED

    @precondition(lambda self: self.outcome is RolloutState.RUNNING)
    @rule(up=st.booleans())
    def somebody_ends_it(self, up: bool) -> None:
        decision = self.core.promote("as asked") if up else self.core.roll_back("as asked")
        self.outcome = decision.state

    @precondition(lambda self: self.outcome is not RolloutState.PROMOTED)
    @rule(plan=st.sampled_from((None, PLAN, WITH_SHADOW)))
    def somebody_begins_it_again(self, plan: RolloutPlan | None) -> None:
        plan = plan or self.core.plan
        decision = self.core.restart(self.now_ns, "as asked", plan)
        assert decision.state is RolloutState.RUNNING
        assert self.core.plan is plan
        self.step = 0 if plan.shadow is None else -1
        self.outcome, self.since_ns, self.new, self.differences = RolloutState.RUNNING, self.now_ns, [], []

    @invariant()
    def they_agree(self) -> None:
        assert self.core.state is self.outcome
        shares = {RolloutState.PROMOTED: 100.0, RolloutState.ROLLED_BACK: 0.0}
        assert self.core.percent == shares.get(self.outcome, (1.0, 10.0, 50.0, 0.0, 0.0)[self.step or 0])
        assert self.outcome is not RolloutState.RUNNING or (self.core.shadow is not None) == (self.step == -1)


TestBeside = Beside.TestCase
TestBeside.settings = settings(max_examples=100, stateful_step_count=30)


@given(st.lists(st.integers(0, 3600 * NS_PER_S), min_size=1, max_size=300))
@settings(max_examples=100)
def test_the_percentile_is_exact_within_half_a_percent(latencies: list[int]) -> None:
    core = RolloutCore(PLAN, 0)
    for each in latencies:
        core.ended(Arm.NEW, core.begun, failed=False, latency_ns=each)
    exact = sorted(latencies)[math.ceil(len(latencies) * 0.99) - 1]
    found = core.counts[Arm.NEW].p99_ns()
    assert abs(found - exact) <= max(exact * 0.005, 1_000)
