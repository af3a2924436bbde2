"""The default core's rules, one by one."""

from __future__ import annotations

import pytest

from tpy.errors import InvariantViolation, Unavailable
from tpy_data.schedulers.core.contract import CoreSnapshot, Dispatch, Outcome, Phase, Refuse, Respond, Ticket
from tpy_data.schedulers.core.default import DefaultCore


def core_with_instances(*instances: int) -> DefaultCore:
    core = DefaultCore()
    for instance in instances:
        core.add_instance(instance, 0)
    return core


def test_an_idle_instance_gets_the_request_at_once() -> None:
    core = core_with_instances(7)
    ticket = Ticket(batch_size=3)
    core.submit(ticket, 5)
    assert core.take_actions() == [Dispatch(7, ((ticket,),))]
    assert ticket.phase is Phase.EXECUTING
    assert core.snapshot() == CoreSnapshot(queued=0, executing=1, idle_instances=0)


def test_requests_run_alone_and_in_order() -> None:
    core = core_with_instances(0)
    first, second, third = tickets = [Ticket() for _ in range(3)]
    for ticket in tickets:
        core.submit(ticket, 0)
    assert core.take_actions() == [Dispatch(0, ((first,),))]
    core.done(0, 1)
    assert core.take_actions() == [Respond((first,)), Dispatch(0, ((second,),))]
    core.done(0, 2)
    assert core.take_actions() == [Respond((second,)), Dispatch(0, ((third,),))]


def test_priority_has_no_effect() -> None:
    core = core_with_instances(0)
    running, low, high = Ticket(), Ticket(priority=9), Ticket(priority=1)
    for ticket in (running, low, high):
        core.submit(ticket, 0)
    core.take_actions()
    core.done(0, 1)
    assert core.take_actions()[1] == Dispatch(0, ((low,),))


def test_the_instance_that_was_idle_longest_is_next() -> None:
    core = core_with_instances(0, 1)
    core.submit(Ticket(), 0)
    core.done(0, 1)
    core.take_actions()
    ticket = Ticket()
    core.submit(ticket, 2)
    assert core.take_actions() == [Dispatch(1, ((ticket,),))]


def test_requests_wait_for_the_first_instance() -> None:
    core = DefaultCore()
    ticket = Ticket()
    core.submit(ticket, 0)
    assert core.take_actions() == []
    core.add_instance(4, 1)
    assert core.take_actions() == [Dispatch(4, ((ticket,),))]


def test_a_waiting_request_is_refused_exactly_at_its_deadline() -> None:
    core = DefaultCore()
    ticket = Ticket(deadline_ns=110)
    core.submit(ticket, 100)
    assert core.next_deadline_ns() == 110
    core.advance(109)
    assert core.take_actions() == []
    core.advance(110)
    assert core.take_actions() == [Refuse(ticket, Outcome.TIMED_OUT)]
    assert core.next_deadline_ns() is None
    core.add_instance(0, 111)
    assert core.take_actions() == []


def test_a_callers_timeout_belongs_to_dynamic_batching() -> None:
    core = DefaultCore()
    core.submit(Ticket(timeout_ns=10), 100)
    assert core.next_deadline_ns() is None


def test_a_running_request_is_refused_on_time_and_its_answer_dropped() -> None:
    core = core_with_instances(0)
    ticket = Ticket(deadline_ns=10)
    core.submit(ticket, 0)
    core.take_actions()
    core.advance(10)
    assert core.take_actions() == [Refuse(ticket, Outcome.TIMED_OUT)]
    assert core.snapshot() == CoreSnapshot(queued=0, executing=0, idle_instances=0)
    core.done(0, 20)
    assert core.take_actions() == []
    assert core.snapshot().idle_instances == 1


def test_a_late_driver_does_not_run_what_has_expired() -> None:
    core = core_with_instances(0)
    running, waiting = Ticket(), Ticket(deadline_ns=5)
    core.submit(running, 0)
    core.submit(waiting, 0)
    core.take_actions()
    core.done(0, 6)
    assert core.take_actions() == [Refuse(waiting, Outcome.TIMED_OUT), Respond((running,))]


def test_a_request_that_comes_too_late_is_refused_at_once() -> None:
    core = core_with_instances(0)
    ticket = Ticket(deadline_ns=5)
    core.submit(ticket, 5)
    assert core.take_actions() == [Refuse(ticket, Outcome.TIMED_OUT)]
    assert core.snapshot().idle_instances == 1


def test_cancelling_frees_the_queue_place_at_once() -> None:
    core = core_with_instances(0)
    running, gone, last = Ticket(), Ticket(deadline_ns=50), Ticket()
    for ticket in (running, gone, last):
        core.submit(ticket, 0)
    core.cancel(gone, 1)
    assert core.snapshot().queued == 1
    assert core.next_deadline_ns() is None
    core.take_actions()
    core.done(0, 2)
    assert core.take_actions() == [Respond((running,)), Dispatch(0, ((last,),))]


def test_cancelling_a_running_request_drops_its_answer_only() -> None:
    core = core_with_instances(0)
    running = Ticket()
    core.submit(running, 0)
    core.cancel(running, 1)
    core.cancel(running, 1)
    core.take_actions()
    assert core.snapshot() == CoreSnapshot(queued=0, executing=0, idle_instances=0)
    core.done(0, 2)
    assert core.take_actions() == []


def test_a_leaving_instance_finishes_and_takes_nothing_new() -> None:
    core = core_with_instances(0)
    running, waiting = Ticket(), Ticket()
    core.submit(running, 0)
    core.submit(waiting, 0)
    core.take_actions()
    core.remove_instance(0, 1)
    core.done(0, 2)
    assert core.take_actions() == [Respond((running,))]
    assert core.snapshot() == CoreSnapshot(queued=1, executing=0, idle_instances=0)


def test_stop_refuses_what_waits_and_whatever_comes_later() -> None:
    core = core_with_instances(0)
    running, waiting = Ticket(), Ticket(deadline_ns=50)
    core.submit(running, 0)
    core.submit(waiting, 0)
    core.take_actions()
    core.stop(1)
    assert core.take_actions() == [Refuse(waiting, Outcome.STOPPING)]
    assert core.next_deadline_ns() is None
    with pytest.raises(Unavailable, match="Server is stopping"):
        core.submit(Ticket(), 2)
    core.done(0, 3)
    assert core.take_actions() == [Respond((running,))]


def test_a_driver_that_breaks_the_contract_raises() -> None:
    core = core_with_instances(0)
    with pytest.raises(InvariantViolation, match="added twice"):
        core.add_instance(0, 1)
    with pytest.raises(InvariantViolation, match="not a member"):
        core.remove_instance(3, 1)
    with pytest.raises(InvariantViolation, match="holds 0"):
        core.done(0, 1)


def test_forgotten_deadlines_do_not_pile_up() -> None:
    core = core_with_instances(0)
    for now_ns in range(2_000):
        core.submit(Ticket(deadline_ns=now_ns + 1_000_000), now_ns)
        core.done(0, now_ns)
        core.take_actions()
    assert core.next_deadline_ns() is None


def test_what_waits_is_refused_and_what_comes_later_is_not() -> None:
    core = core_with_instances(0)
    running, waiting, later = Ticket(), Ticket(deadline_ns=50), Ticket()
    core.submit(running, 0)
    core.submit(waiting, 0)
    core.take_actions()
    core.refuse_waiting(1)
    assert core.take_actions() == [Refuse(waiting, Outcome.NO_INSTANCE)]
    core.submit(later, 2)
    core.done(0, 3)
    assert core.take_actions() == [Respond((running,)), Dispatch(0, ((later,),))]
