"""The dynamic core's rules, one by one."""

from __future__ import annotations

import pytest

from tests.schedulers.dynamic import complete, core_of, occupy, submit, tickets_of
from tpy.config.model_config import TimeoutAction
from tpy.errors import Unavailable
from tpy_data.schedulers.core.contract import CoreSnapshot, Dispatch, Outcome, Phase, Refuse, Respond, Ticket
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, QueueRules


def test_without_delay_a_lone_request_goes_at_once() -> None:
    core = core_of()
    [ticket] = tickets_of(1)
    assert submit(core, ticket) == [Dispatch(0, ([ticket],))]


def test_whole_requests_up_to_the_largest_batch() -> None:
    core = core_of(batch=8)
    occupy(core)
    tickets = tickets_of(3, 3, 3, 5)
    submit(core, *tickets)
    assert complete(core, 1) == [tickets[:2]]
    assert complete(core, 2) == [tickets[2:]]


def test_a_request_that_would_exceed_closes_the_batch_and_it_is_sent() -> None:
    core = core_of(batch=4, delay_ns=100)
    two, three = tickets_of(2, 3)
    assert submit(core, two) == []
    assert submit(core, three, now_ns=1) == [Dispatch(0, ([two],))]


def test_an_incompatible_request_closes_the_batch_and_it_is_sent() -> None:
    core = core_of(batch=4, delay_ns=100)
    [ours], [other] = tickets_of(1), tickets_of(1, signature="b")
    assert submit(core, ours) == []
    assert submit(core, other) == [Dispatch(0, ([ours],))]


def test_a_preferred_size_is_sent_without_waiting() -> None:
    core = core_of(batch=8, preferred=(2, 8), delay_ns=100)
    first, second = tickets_of(1, 1)
    assert submit(core, first) == []
    assert submit(core, second) == [Dispatch(0, ([first, second],))]


def test_the_largest_preferred_size_in_the_queue_is_taken() -> None:
    core = core_of(batch=8, preferred=(2, 4))
    occupy(core)
    tickets = tickets_of(1, 1, 1, 1, 1)
    submit(core, *tickets)
    assert complete(core, 1) == [tickets[:4]]


def test_when_the_delay_is_over_more_than_preferred_is_sent() -> None:
    core = core_of(batch=8, preferred=(4,), delay_ns=10)
    occupy(core)
    tickets = tickets_of(1, 1, 1, 1, 1)
    submit(core, *tickets, now_ns=10)
    assert complete(core, 20) == [tickets]


def test_what_would_lead_beyond_all_preferred_sizes_is_left_behind() -> None:
    core = core_of(batch=8, preferred=(4,), delay_ns=100)
    first, second = tickets_of(3, 3)
    assert submit(core, first) == []
    assert submit(core, second) == [Dispatch(0, ([first],))]


def test_without_delay_what_leads_beyond_all_preferred_sizes_is_taken_along() -> None:
    core = core_of(batch=8, preferred=(4,))
    occupy(core)
    tickets = tickets_of(3, 3, 3)
    submit(core, *tickets)
    assert complete(core, 1) == [tickets[:2]]


def test_a_lone_request_waits_the_whole_delay_when_only_the_full_batch_is_preferred() -> None:
    core = core_of(delay_ns=50)
    [ticket] = tickets_of(1)
    assert submit(core, ticket, now_ns=7) == []
    assert core.next_deadline_ns() == 57
    core.advance(56)
    assert core.take_actions() == []
    core.advance(57)
    assert core.take_actions() == [Dispatch(0, ([ticket],))]


def test_the_delay_counts_from_the_oldest_request() -> None:
    core = core_of(delay_ns=50)
    first, second = tickets_of(1, 1)
    submit(core, first, now_ns=0)
    submit(core, second, now_ns=30)
    assert core.next_deadline_ns() == 50
    core.cancel(first, 31)
    assert core.next_deadline_ns() == 80


def test_the_delay_needs_no_timer_while_every_instance_is_busy() -> None:
    core = core_of(delay_ns=5)
    occupy(core)
    tickets = tickets_of(1, 1)
    submit(core, *tickets, now_ns=6)
    assert core.next_deadline_ns() is None
    assert complete(core, 30) == [tickets]


def test_each_idle_instance_gets_a_batch() -> None:
    core = core_of(batch=2)
    core.add_instance(1, 0)
    one, two, three = tickets_of(1, 1, 1)
    assert submit(core, one, two, three) == [Dispatch(0, ([one],)), Dispatch(1, ([two],))]
    core.done(1, 1)
    assert core.take_actions() == [Respond([two]), Dispatch(1, ([three],))]


def test_a_request_larger_than_the_batch_runs_alone() -> None:
    core = core_of(batch=1)
    occupy(core)
    tickets = tickets_of(1, 3, 1)
    submit(core, *tickets)
    assert [complete(core, now_ns) for now_ns in (1, 2, 3)] == [[[ticket]] for ticket in tickets]


# order of answers


def ordered() -> DynamicCore:
    core = DynamicCore(DynamicOptions(preserve_ordering=True))
    core.add_instance(0, 0)
    core.add_instance(1, 0)
    return core


def test_answers_leave_in_order_of_arrival() -> None:
    core = ordered()
    first, second = tickets_of(1, 1)
    submit(core, first, second)
    core.done(1, 5)
    assert core.take_actions() == []
    assert second.phase is Phase.EXECUTED
    core.done(0, 6)
    assert core.take_actions() == [Respond([first, second])]


def test_a_request_that_ends_otherwise_holds_nobody_back() -> None:
    core = ordered()
    cancelled, expired, third = Ticket(), Ticket(deadline_ns=8), Ticket()
    submit(core, cancelled, expired)
    core.done(1, 1)
    core.submit(third, 1)
    core.done(1, 2)
    core.take_actions()
    core.cancel(cancelled, 3)
    assert core.take_actions() == [Respond([expired, third])]


def test_an_answer_that_waits_too_long_for_its_turn_is_dropped() -> None:
    core = ordered()
    first, second, third = Ticket(), Ticket(deadline_ns=8), Ticket()
    submit(core, first, second)
    core.done(1, 1)
    core.submit(third, 1)
    core.done(1, 2)
    core.advance(8)
    assert core.take_actions()[-1] == Refuse(second, Outcome.TIMED_OUT)
    core.done(0, 9)
    assert core.take_actions() == [Respond([first, third])]


def test_stopping_releases_the_answers_behind_what_it_refuses() -> None:
    core = DynamicCore(
        DynamicOptions(
            preserve_ordering=True,
            levels=(QueueRules(timeout_action=TimeoutAction.DELAY, default_timeout_ns=5),),
            queue_delay_ns_max=0,
        )
    )
    blocked, quick = Ticket(), Ticket()
    core.submit(blocked, 0)
    core.submit(quick, 4)
    core.advance(5)  # now `quick` is served before `blocked`
    core.add_instance(0, 6)
    core.remove_instance(0, 6)
    core.done(0, 7)
    assert core.take_actions() == [Dispatch(0, ([quick],))]
    core.stop(8)
    assert core.take_actions() == [Refuse(blocked, Outcome.STOPPING), Respond([quick])]


# cancelling, instances, stopping


def test_cancelling_before_the_batch_is_sent_takes_the_request_out_of_it() -> None:
    core = core_of(delay_ns=10)
    first, second = tickets_of(1, 1)
    submit(core, first, second)
    core.cancel(first, 5)
    core.advance(10)
    assert core.take_actions() == [Dispatch(0, ([second],))]


def test_cancelling_what_closed_nothing_may_complete_a_preferred_size() -> None:
    core = core_of(batch=4, preferred=(2,), delay_ns=10)
    occupy(core)
    one, two, three = tickets_of(1, 2, 1)
    submit(core, one, two, three)
    core.cancel(two, 1)
    assert complete(core, 2) == [[one, three]]


def test_removing_the_idle_instance_stops_the_wait_for_company() -> None:
    core = core_of(delay_ns=10)
    [ticket] = tickets_of(1)
    submit(core, ticket)
    core.remove_instance(0, 1)
    assert core.next_deadline_ns() is None
    core.add_instance(1, 2)
    assert core.next_deadline_ns() == 10


def test_stop_refuses_what_waits_for_company() -> None:
    core = core_of(delay_ns=10)
    [ticket] = tickets_of(1)
    submit(core, ticket)
    core.stop(1)
    assert core.take_actions() == [Refuse(ticket, Outcome.STOPPING)]
    assert core.next_deadline_ns() is None
    with pytest.raises(Unavailable, match="Server is stopping"):
        core.submit(Ticket(), 2)


def test_a_batch_that_was_not_begun_waits_again_before_all_others() -> None:
    core = core_of(batch=2)
    first, second, third = tickets_of(1, 1, 1)
    submit(core, first)
    submit(core, second, third)
    core.remove_instance(0, 5)
    core.revoked(0, 5, 1)
    assert core.take_actions() == []
    assert core.snapshot() == CoreSnapshot(queued=3, executing=0, idle_instances=0)
    core.add_instance(1, 6)
    assert core.take_actions() == [Dispatch(1, ([first, second],))]
    core.done(1, 7)
    assert core.take_actions() == [Respond([first, second]), Dispatch(1, ([third],))]


def test_a_batch_that_was_not_begun_keeps_its_time_in_the_queue() -> None:
    core = core_of(batch=2, rules=QueueRules(default_timeout_ns=100))
    first, second = tickets_of(1, 1)
    submit(core, first)
    submit(core, second, now_ns=50)
    core.remove_instance(0, 60)
    core.revoked(0, 60, 1)
    assert core.next_deadline_ns() == 100
    core.advance(100)
    assert core.take_actions() == [Refuse(first, Outcome.TIMED_OUT)]
    assert core.next_deadline_ns() == 150


def test_a_batch_that_was_not_begun_is_refused_when_its_time_is_over_or_all_is() -> None:
    core = core_of(batch=2, rules=QueueRules(default_timeout_ns=100))
    (late,) = tickets_of(1)
    submit(core, late)
    core.remove_instance(0, 100)
    core.revoked(0, 100, 1)
    assert core.take_actions() == [Refuse(late, Outcome.TIMED_OUT)]
    core.add_instance(1, 100)
    (stopped, cancelled) = tickets_of(1, 1)
    submit(core, stopped, now_ns=100)
    core.stop(101)
    core.revoked(1, 102, 1)
    assert core.take_actions() == [Refuse(stopped, Outcome.STOPPING)]
    assert cancelled.phase is Phase.QUEUED
    assert core.snapshot() == CoreSnapshot(queued=0, executing=0, idle_instances=1)


def test_a_ticket_that_ended_while_its_batch_was_not_begun_does_not_come_back() -> None:
    core = core_of(batch=2)
    first, second = tickets_of(1, 1)
    occupy(core)
    submit(core, first, second)
    core.done(0, 1)
    core.take_actions()
    core.cancel(first, 2)
    core.revoked(0, 3, 1)
    assert core.take_actions() == [Dispatch(0, ([second],))]
