"""The dynamic core's queue: priorities, policies and deadlines."""

from __future__ import annotations

import pytest

from tests.schedulers.dynamic import DELAY, complete, core_of, occupy, submit, tickets_of
from tpy.errors import Unavailable
from tpy_data.schedulers.core.contract import CoreSnapshot, Dispatch, Outcome, Refuse, Respond, Ticket
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, QueueRules

# priorities


def prioritised(levels: int = 3, default: int = 2) -> DynamicCore:
    core = DynamicCore(
        DynamicOptions(
            batch_size_max=8,
            preferred=frozenset({8}),
            levels=tuple(QueueRules() for _ in range(levels)),
            default_level=default - 1,
        )
    )
    core.add_instance(0, 0)
    return core


def test_priority_one_is_served_first_and_unknown_levels_are_the_default() -> None:
    core = prioritised()
    occupy(core)
    tickets = {priority: Ticket(priority=priority) for priority in (3, 0, 2, 9, 1)}
    submit(core, *tickets.values())
    assert complete(core, 1) == [[tickets[1], tickets[0], tickets[2], tickets[9], tickets[3]]]


def test_a_higher_priority_joins_the_front_of_a_batch_that_waits() -> None:
    core = DynamicCore(
        DynamicOptions(batch_size_max=3, preferred=frozenset({3}), queue_delay_ns_max=9, levels=(QueueRules(), QueueRules()))
    )
    core.add_instance(0, 0)
    low, high, higher = Ticket(priority=2), Ticket(priority=2), Ticket(priority=1)
    assert submit(core, low, high) == []
    assert submit(core, higher) == [Dispatch(0, ([higher, low, high],))]


# queue policies


def test_a_full_queue_refuses_and_leaves_no_trace() -> None:
    core = core_of(rules=QueueRules(queue_size_max=2))
    occupy(core)
    waiting = tickets_of(1, 1)
    submit(core, *waiting)
    with pytest.raises(Unavailable, match=r"^Exceeds maximum queue size$"):
        core.submit(Ticket(deadline_ns=5), 0)
    assert core.take_actions() == []
    assert core.next_deadline_ns() is None
    assert core.snapshot().queued == 2
    core.cancel(waiting[0], 1)
    core.submit(Ticket(), 1)
    assert core.snapshot().queued == 2


def test_each_level_has_its_own_limit() -> None:
    core = DynamicCore(DynamicOptions(levels=(QueueRules(queue_size_max=1), QueueRules())))
    core.submit(Ticket(priority=1), 0)
    core.submit(Ticket(priority=2), 0)
    core.submit(Ticket(priority=2), 0)
    with pytest.raises(Unavailable):
        core.submit(Ticket(priority=1), 0)


def test_delayed_requests_count_towards_the_limit() -> None:
    core = core_of(rules=QueueRules(queue_size_max=1, timeout_action=DELAY, default_timeout_ns=5))
    occupy(core)
    submit(core, Ticket())
    core.advance(5)
    with pytest.raises(Unavailable):
        core.submit(Ticket(), 6)


def test_the_default_timeout_refuses_on_time() -> None:
    core = core_of(rules=QueueRules(default_timeout_ns=10))
    occupy(core)
    [ticket] = tickets_of(1)
    submit(core, ticket, now_ns=3)
    assert core.next_deadline_ns() == 13
    core.advance(13)
    assert core.take_actions() == [Refuse(ticket, Outcome.TIMED_OUT)]


def test_the_default_timeout_does_not_touch_what_runs() -> None:
    core = core_of(rules=QueueRules(default_timeout_ns=10))
    [ticket] = tickets_of(1)
    submit(core, ticket)
    assert core.next_deadline_ns() is None
    core.done(0, 50)
    assert core.take_actions() == [Respond([ticket])]


def test_delayed_requests_are_served_after_all_unexpired_of_their_level() -> None:
    core = core_of(batch=1, rules=QueueRules(timeout_action=DELAY, default_timeout_ns=10))
    occupy(core)
    old, young = tickets_of(1, 1)
    submit(core, old, now_ns=0)
    submit(core, young, now_ns=5)
    core.advance(10)
    assert core.take_actions() == []
    assert core.snapshot().queued == 2
    assert [complete(core, 11), complete(core, 12)] == [[[young]], [[old]]]


def test_delayed_requests_of_a_level_come_before_lower_levels() -> None:
    rules = QueueRules(timeout_action=DELAY, default_timeout_ns=10)
    core = DynamicCore(DynamicOptions(levels=(rules, QueueRules())))
    high, low = Ticket(priority=1), Ticket(priority=2)
    submit(core, high, low)
    core.advance(10)
    core.add_instance(0, 11)
    assert core.take_actions() == [Dispatch(0, ([high],))]


@pytest.mark.parametrize(
    ("allowed", "timeout_ns", "expected"), [(True, 4, 4), (True, 0, 10), (True, 15, 10), (False, 4, 10), (False, 15, 10)]
)
def test_a_request_may_shorten_its_time_in_the_queue_where_that_is_allowed(allowed: bool, timeout_ns: int, expected: int) -> None:
    rules = QueueRules(default_timeout_ns=10, allow_timeout_override=allowed, timeout_action=DELAY)
    assert rules.queue_timeout_ns(timeout_ns) == expected


def test_without_a_default_there_is_nothing_to_shorten() -> None:
    assert QueueRules(allow_timeout_override=True).queue_timeout_ns(4) == 0


def test_a_request_that_is_delayed_while_a_batch_waits_for_company_goes_to_its_end() -> None:
    core = core_of(delay_ns=20, rules=QueueRules(timeout_action=DELAY, default_timeout_ns=10))
    old, young = tickets_of(1, 1)
    submit(core, old, now_ns=0)
    submit(core, young, now_ns=11)
    core.advance(20)
    assert core.take_actions() == [Dispatch(0, ([young, old],))]


# end-to-end deadlines


@pytest.mark.parametrize("rules", [QueueRules(), QueueRules(timeout_action=DELAY), QueueRules(allow_timeout_override=True)])
def test_a_deadline_refuses_in_the_queue_and_while_running(rules: QueueRules) -> None:
    core = core_of(batch=1, rules=rules)
    running, waiting = Ticket(deadline_ns=10), Ticket(deadline_ns=10)
    submit(core, running, waiting)
    assert core.next_deadline_ns() == 10
    core.advance(10)
    assert core.take_actions() == [Refuse(running, Outcome.TIMED_OUT), Refuse(waiting, Outcome.TIMED_OUT)]
    assert core.snapshot() == CoreSnapshot(queued=0, executing=0, idle_instances=0)


@pytest.mark.parametrize("rules", [QueueRules(), QueueRules(timeout_action=DELAY), QueueRules(allow_timeout_override=True)])
def test_the_callers_timeout_alone_changes_nothing(rules: QueueRules) -> None:
    core = core_of(batch=1, rules=rules)
    submit(core, Ticket(timeout_ns=10), Ticket(timeout_ns=10))
    assert core.next_deadline_ns() is None


def test_where_the_queue_allows_it_the_callers_timeout_refuses_in_the_queue_only() -> None:
    core = core_of(batch=1, rules=QueueRules(allow_timeout_override=True, default_timeout_ns=100))
    running, waiting = Ticket(timeout_ns=10), Ticket(timeout_ns=10)
    submit(core, running, waiting)
    core.advance(10)
    assert core.take_actions() == [Refuse(waiting, Outcome.TIMED_OUT)]
    assert core.next_deadline_ns() is None


def test_the_rest_of_the_batch_goes_on() -> None:
    core = core_of(batch=2, delay_ns=5)
    hurried, patient = Ticket(deadline_ns=10), Ticket()
    submit(core, hurried, patient)
    core.advance(10)
    core.done(0, 12)
    assert core.take_actions() == [Refuse(hurried, Outcome.TIMED_OUT), Respond([patient])]


def test_a_timeout_that_the_model_takes_for_delaying_refuses_nobody() -> None:
    core = core_of(batch=1, rules=QueueRules(timeout_action=DELAY, allow_timeout_override=True, default_timeout_ns=100))
    occupy(core)
    hurried, patient = Ticket(timeout_ns=10), Ticket()
    submit(core, hurried, patient)
    core.advance(10)
    assert core.take_actions() == []
    assert complete(core, 11) == [[patient]]


def test_the_transport_deadline_refuses_even_a_delayed_request() -> None:
    core = core_of(rules=QueueRules(timeout_action=DELAY, default_timeout_ns=5))
    occupy(core)
    ticket = Ticket(deadline_ns=9)
    submit(core, ticket)
    core.advance(5)
    assert core.next_deadline_ns() == 9
    core.advance(9)
    assert core.take_actions() == [Refuse(ticket, Outcome.TIMED_OUT)]


def test_a_request_that_comes_too_late_is_refused_even_when_the_queue_is_full() -> None:
    core = core_of(rules=QueueRules(queue_size_max=1))
    occupy(core)
    submit(core, Ticket())
    late = Ticket(deadline_ns=3)
    assert submit(core, late, now_ns=3) == [Refuse(late, Outcome.TIMED_OUT)]
