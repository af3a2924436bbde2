"""Steady runs: the only instance of a slow model has its next requests at hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tpy.limits import RUN_SLICE_NS_MAX, STEADY_RUN_REQUESTS_MAX
from tpy_data.schedulers.core.contract import BreakUp, CoreSnapshot, Dispatch, Outcome, Refuse, Respond, Retired, Ticket
from tpy_data.schedulers.core.default import DefaultCore

SLOW_NS = RUN_SLICE_NS_MAX + 1


def core_of(*, steady: bool = True, took_ns: int = SLOW_NS, waiting: int = 6) -> tuple[DefaultCore, tuple[Ticket, ...]]:
    """A core whose only instance has executed one request in `took_ns`, after which so many waited; and those."""
    core = DefaultCore()
    core.add_instance(0, 0, steady=steady)
    core.submit(Ticket(), 0)
    tickets = tuple(Ticket() for _ in range(waiting))
    for ticket in tickets:
        core.submit(ticket, 0)
    core.take_actions()
    core.completed(0, took_ns, brief=took_ns <= RUN_SLICE_NS_MAX, took_ns=took_ns)
    return core, tickets


def given(core: DefaultCore) -> list[Dispatch]:
    return [action for action in core.take_actions() if isinstance(action, Dispatch)]


def test_a_slow_instance_that_is_alone_gets_several() -> None:
    core, tickets = core_of()
    assert given(core) == [Dispatch(0, tickets[:STEADY_RUN_REQUESTS_MAX], singly=True, steady=True)]
    assert core.next_deadline_ns() is None, "it is not broken up because of its time"


@pytest.mark.parametrize(("steady", "took_ns"), [(False, SLOW_NS), (True, RUN_SLICE_NS_MAX), (True, 0)])
def test_one_that_cannot_or_is_quick_gets_no_steady_run(steady: bool, took_ns: int) -> None:
    core, _ = core_of(steady=steady, took_ns=took_ns)
    assert [dispatch.steady for dispatch in given(core)] == [False]


def test_a_lone_request_is_a_run_like_any_other() -> None:
    core, tickets = core_of(waiting=1)
    assert given(core) == [Dispatch(0, tickets, singly=True)]


def test_of_two_slow_instances_none_has_requests_that_the_other_could_take() -> None:
    core = DefaultCore()
    for instance in (0, 1):
        core.add_instance(instance, 0, steady=True)
    for _ in range(8):
        core.submit(Ticket(), 0)
    core.take_actions()
    for instance in (0, 1):
        core.completed(instance, SLOW_NS, took_ns=SLOW_NS)
    assert [(len(dispatch.tickets), dispatch.steady) for dispatch in given(core)] == [(1, False), (1, False)]


def test_what_is_over_is_answered_and_what_is_at_hand_waits() -> None:
    core, tickets = core_of()
    core.take_actions()
    assert core.snapshot() == CoreSnapshot(queued=5, executing=1, idle_instances=0)
    core.broken_up(0, SLOW_NS, executed=1, not_begun=0)
    assert core.take_actions() == [Respond(tickets[:1])]
    assert core.snapshot() == CoreSnapshot(queued=4, executing=1, idle_instances=0)
    core.cancel(tickets[3], SLOW_NS)
    assert core.snapshot() == CoreSnapshot(queued=3, executing=1, idle_instances=0)
    core.broken_up(0, SLOW_NS, executed=1, not_begun=0)
    core.completed(0, SLOW_NS, took_ns=SLOW_NS)
    assert core.take_actions() == [
        Respond(tickets[1:2]),
        Respond(tickets[2:3]),
        Dispatch(0, tickets[4:], singly=True, steady=True),
    ]


def test_an_instance_that_has_become_quick_gets_ordinary_runs_again() -> None:
    core, _ = core_of(waiting=12)
    core.take_actions()
    core.completed(0, SLOW_NS, brief=False, took_ns=1)
    assert [dispatch.steady for dispatch in given(core)] == [False]


CHANGES: list[tuple[Callable[[DefaultCore], None], list[object]]] = [
    (lambda core: core.remove_instance(0, SLOW_NS), []),
    (lambda core: core.retire_instance(0, SLOW_NS), [Retired(0)]),
]


@pytest.mark.parametrize(("change", "more"), CHANGES)
def test_when_the_instance_goes_what_it_has_not_begun_waits_for_others(
    change: Callable[[DefaultCore], None], more: list[object]
) -> None:
    core, tickets = core_of()
    core.take_actions()
    change(core)
    assert core.take_actions() == [BreakUp(0), *more]
    core.broken_up(0, SLOW_NS, executed=0, not_begun=3)
    assert core.take_actions() == []
    core.add_instance(1, SLOW_NS)
    assert core.take_actions() == [Dispatch(1, tickets[1:2], singly=True)], "in its old place"


def test_another_instance_gets_its_share() -> None:
    core, tickets = core_of()
    core.take_actions()
    core.add_instance(1, SLOW_NS, steady=True)
    assert core.take_actions() == [Dispatch(1, tickets[4:5], singly=True), BreakUp(0)]
    core.broken_up(0, SLOW_NS, executed=0, not_begun=3)
    core.completed(1, SLOW_NS, took_ns=SLOW_NS)
    assert core.take_actions() == [Respond(tickets[4:5]), Dispatch(1, tickets[1:2], singly=True)]


def test_a_stop_refuses_what_is_not_begun() -> None:
    core, tickets = core_of()
    core.take_actions()
    core.stop(SLOW_NS)
    assert core.take_actions() == [Refuse(ticket, Outcome.STOPPING) for ticket in tickets[4:]] + [BreakUp(0)]
    core.broken_up(0, SLOW_NS, executed=0, not_begun=3)
    assert core.take_actions() == [Refuse(ticket, Outcome.STOPPING) for ticket in tickets[1:4]]


def test_a_run_of_which_one_request_is_left_needs_no_breaking_up() -> None:
    core, _ = core_of()
    core.take_actions()
    core.broken_up(0, SLOW_NS, executed=3, not_begun=0)
    core.take_actions()
    core.stop(SLOW_NS)
    assert not any(isinstance(action, BreakUp) for action in core.take_actions())
