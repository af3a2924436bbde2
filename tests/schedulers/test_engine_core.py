"""The engine core: its rules one by one, and a state machine against the reference (fuzz/schedulers/engine_trial.py)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fuzz.schedulers.engine_trial import EngineTrial
from tests.schedulers.test_machines import rules_of_a_level
from tpy.errors import InvariantViolation, QueueFull
from tpy_data.generation.core.cost import Cost
from tpy_data.schedulers.core.contract import CoreSnapshot, Dispatch, Outcome, Phase, Refuse, Respond, Retired, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, QueueRules
from tpy_data.schedulers.core.engine_core import EngineCore


def asking(sequences: int = 1, tokens: int = 1, **fields: int) -> Ticket:
    ticket = Ticket(**fields)
    ticket.cost = Cost(sequences, tokens)
    return ticket


def core_with(*rooms: tuple[int, int], rules: QueueRules | None = None) -> EngineCore:
    """One engine for each room, numbered from 0 on."""
    core = EngineCore(DynamicOptions(levels=(rules or QueueRules(),)))
    for instance, (sequences, tokens) in enumerate(rooms):
        core.add_instance(instance, 0, credit=sequences, tokens=tokens)
    return core


def given(core: EngineCore) -> list[tuple[int, Ticket]]:
    return [
        (action.instance, ticket)
        for action in core.take_actions()
        if isinstance(action, Dispatch)
        for batch in action.batches
        for ticket in batch
    ]


def test_an_engine_is_given_as_many_sequences_as_it_has_room_for() -> None:
    core = core_with((3, 0))
    tickets = [asking(), asking(sequences=2), asking()]
    for ticket in tickets:
        core.submit(ticket, 0)
    assert given(core) == [(0, tickets[0]), (0, tickets[1])]
    assert core.snapshot() == CoreSnapshot(queued=1, executing=2, idle_instances=0)


def test_an_engine_is_given_no_more_tokens_than_it_has_room_for() -> None:
    core = core_with((8, 10))
    tickets = [asking(tokens=6), asking(tokens=5), asking(tokens=1)]
    for ticket in tickets:
        core.submit(ticket, 0)
    assert given(core) == [(0, tickets[0])], "the small one does not pass the one that waits for room"


def test_what_no_engine_has_room_for_runs_alone() -> None:
    core = core_with((2, 10))
    large, small = asking(tokens=50), asking()
    core.submit(large, 0)
    core.submit(small, 0)
    assert given(core) == [(0, large)]


def test_room_is_free_when_the_request_is_over_and_not_when_it_is_taken() -> None:
    core = core_with((1, 0))
    first, second = asking(), asking()
    core.submit(first, 0)
    core.submit(second, 0)
    core.take_actions()
    core.done(0, 1)
    assert core.take_actions() == [Respond((first,))]
    assert first.phase is Phase.EXECUTING
    core.cancel(first, 2)
    assert given(core) == [(0, second)]


def test_the_engine_with_the_fewest_tokens_is_next() -> None:
    core = core_with((4, 0), (4, 0))
    tickets = [asking(tokens=9), asking(tokens=1), asking(tokens=1)]
    for ticket in tickets:
        core.submit(ticket, 0)
    assert [instance for instance, _ in given(core)] == [0, 1, 1]


def test_a_deadline_is_kept_until_the_engine_has_taken_the_request() -> None:
    core = core_with((2, 0))
    taken, given_only = asking(deadline_ns=5), asking(deadline_ns=5)
    core.submit(taken, 0)
    core.done(0, 1) if core.take_actions() else None
    core.submit(given_only, 1)
    core.take_actions()
    assert core.next_deadline_ns() == 5
    core.advance(5)
    assert core.take_actions() == [Refuse(given_only, Outcome.TIMED_OUT)]
    assert taken.phase is Phase.EXECUTING


def test_a_full_queue_refuses() -> None:
    core = core_with((1, 0), rules=QueueRules(queue_size_max=1))
    for _ in range(2):
        core.submit(asking(), 0)
    with pytest.raises(QueueFull):
        core.submit(asking(), 0)


def test_an_engine_that_retires_keeps_what_it_has() -> None:
    core = core_with((1, 0))
    ticket, waiting = asking(), asking()
    core.submit(ticket, 0)
    core.submit(waiting, 0)
    core.take_actions()
    core.retire_instance(0, 1)
    core.done(0, 1)
    assert core.take_actions() == [Respond((ticket,))]
    core.cancel(ticket, 2)
    assert core.take_actions() == [Retired(0)]
    core.add_instance(1, 3)
    assert given(core) == [(1, waiting)]


def test_what_an_engine_did_not_take_waits_in_its_old_place() -> None:
    core = core_with((2, 0))
    first, second = asking(), asking()
    core.submit(first, 0)
    core.done(0, 0) if core.take_actions() else None
    core.submit(second, 0)
    core.take_actions()
    behind = asking()
    core.submit(behind, 0)
    core.remove_instance(0, 1)
    core.revoked(0, 1, 1)
    core.take_actions()
    core.add_instance(1, 2)
    assert given(core) == [(1, second)]


def test_a_request_has_no_iterations() -> None:
    core = core_with((1, 0))
    ticket = asking()
    core.submit(ticket, 0)
    with pytest.raises(InvariantViolation):
        core.reschedule(ticket, 0)


costs = st.builds(Cost, st.sampled_from((1, 1, 2, 5)), st.sampled_from((1, 2, 4, 9, 30)))


class EngineMachine(RuleBasedStateMachine):
    """Any history. Between two rules any time may pass."""

    trial: EngineTrial

    @initialize(levels=st.lists(rules_of_a_level, min_size=1, max_size=3), data=st.data())
    def start(self, levels: list[QueueRules], data: st.DataObject) -> None:
        options = DynamicOptions(levels=tuple(levels), default_level=data.draw(st.integers(0, len(levels) - 1)))
        self.trial = EngineTrial(EngineCore(options), options)
        self.trial.add_instance(2, 10)

    @rule(
        cost=costs,
        priority=st.integers(0, 4),
        timeout_ns=st.sampled_from((0, 2, 5, 8)),
        deadline_in_ns=st.sampled_from((None, 0, 3, 7)),
    )
    def submit(self, cost: Cost, priority: int, timeout_ns: int, deadline_in_ns: int | None) -> None:
        self.trial.submit(cost=cost, priority=priority, timeout_ns=timeout_ns, deadline_in_ns=deadline_in_ns)

    @precondition(lambda self: self.trial.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.trial.end(data.draw(st.sampled_from(self.trial.live)))

    @rule(data=st.data(), count=st.integers(1, 4))
    def take(self, data: st.DataObject, count: int) -> None:
        self.trial.take(data.draw(st.sampled_from(sorted(self.trial.given))), count)

    @rule(elapsed_ns=st.sampled_from((1, 2, 4, 12)))
    def pass_time(self, elapsed_ns: int) -> None:
        self.trial.now_ns += elapsed_ns

    @rule()
    def advance_to_deadline(self) -> None:
        self.trial.advance_to_deadline()

    @rule(sequences=st.integers(1, 4), tokens=st.sampled_from((0, 5, 20)))
    def add_instance(self, sequences: int, tokens: int) -> None:
        self.trial.add_instance(sequences, tokens)

    @precondition(lambda self: self.trial.engines)
    @rule(data=st.data())
    def remove_instance(self, data: st.DataObject) -> None:
        self.trial.remove_instance(data.draw(st.sampled_from(sorted(self.trial.engines))))

    @precondition(lambda self: self.trial.engines)
    @rule(data=st.data())
    def retire_instance(self, data: st.DataObject) -> None:
        self.trial.retire_instance(data.draw(st.sampled_from(sorted(self.trial.engines))))

    @precondition(lambda self: self.trial.submitted > 10)
    @rule()
    def refuse_waiting(self) -> None:
        self.trial.refuse_waiting()

    @precondition(lambda self: self.trial.submitted > 20)
    @rule()
    def stop(self) -> None:
        self.trial.stop()

    def teardown(self) -> None:
        self.trial.finish()


TestEngineCore = EngineMachine.TestCase
TestEngineCore.settings = settings(max_examples=25, stateful_step_count=40, database=None)
