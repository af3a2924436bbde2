"""Credit: how many batches the instances of a default scheduler hold, and what becomes of those that are not started."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tpy.errors import InvariantViolation
from tpy.limits import (
    PREFETCHED_BATCHES_MAX,
    QUICK_BATCHES_MAX,
    QUICK_BATCHES_NS_MAX,
    QUICK_SHARE_NS_MIN,
    UNREPORTED_NS_MAX,
)
from tpy_data.schedulers.core.contract import CoreSnapshot, Dispatch, Outcome, Phase, Refuse, Respond, Retired, Revoke, Ticket
from tpy_data.schedulers.core.default import DefaultCore

SLOW_NS = QUICK_BATCHES_NS_MAX + 1


def singles(tickets: Sequence[Ticket]) -> tuple[tuple[Ticket], ...]:
    """Each a batch of its own."""
    return tuple((ticket,) for ticket in tickets)


class Play:
    """A core, and how many batches each instance holds."""

    def __init__(self, *instances: int, prefetch: bool = False) -> None:
        self.core = DefaultCore()
        self.held: dict[int, int] = {}
        for instance in instances:
            self.core.add_instance(instance, 0, prefetch=prefetch)

    def submit(self, count: int, now_ns: int = 0) -> list[Ticket]:
        tickets = [Ticket() for _ in range(count)]
        for ticket in tickets:
            self.core.submit(ticket, now_ns)
        return tickets

    def actions(self) -> list[object]:
        actions = self.core.take_actions()
        for action in actions:
            if isinstance(action, Dispatch):
                self.held[action.instance] = self.held.get(action.instance, 0) + len(action.batches)
        return list(actions)

    def given(self) -> list[tuple[int, int]]:
        """The number of batches that each instance got."""
        return [(action.instance, len(action.batches)) for action in self.actions() if isinstance(action, Dispatch)]

    def done(self, instance: int, times_ns: Sequence[int], now_ns: int = 0) -> None:
        self.held[instance] -= len(times_ns)
        self.core.done(instance, now_ns, times_ns)

    def all_done(self, instance: int, took_ns: int = 1) -> None:
        """All batches of the instance are over, each after this time."""
        self.actions()
        self.done(instance, [took_ns] * self.held[instance])


def quick(count: int) -> tuple[Play, list[Ticket]]:
    """Instance 0 was quick so often that it gets `count` batches at once; the play and the tickets of these, dispatched."""
    play = Play(0)
    play.submit(4 * QUICK_BATCHES_MAX)
    while play.core.snapshot().executing:
        play.all_done(0)
    play.submit(1)
    tickets = play.submit(count)
    play.all_done(0)
    assert play.actions()[1:] == [Dispatch(0, singles(tickets))]
    return play, tickets


def slow(*, prefetch: bool = True, took_ns: int = SLOW_NS, waiting: int = 6) -> tuple[Play, list[Ticket]]:
    """A play whose only instance has executed one request in `took_ns`, after which so many waited; and those."""
    play = Play(0, prefetch=prefetch)
    play.submit(1)
    tickets = play.submit(waiting)
    play.actions()
    play.done(0, [took_ns], took_ns)
    return play, tickets


# Quick models


@pytest.mark.parametrize(("took_ns", "given"), [(1, [2, 4, 8, 16, 16, 16]), (SLOW_NS, [1, 1, 1, 1, 1, 1])])
def test_a_quick_instance_gets_more_at_a_time_and_a_slow_one_does_not(took_ns: int, given: list[int]) -> None:
    play = Play(0)
    play.submit(100)
    seen = []
    for _ in given:
        play.all_done(0, took_ns)
        ((_, count),) = play.given()
        seen.append(count)
        play.held[0] = count
    assert seen == given


def test_an_instance_that_becomes_slow_gets_what_it_did_in_time() -> None:
    play, _ = quick(8)
    play.submit(20)
    play.actions()
    play.done(0, [QUICK_BATCHES_NS_MAX // 4] * 8)
    assert play.given() == [(0, 7)]
    play.held[0] = 7
    play.done(0, [QUICK_BATCHES_NS_MAX] * 2)
    assert play.given() == [], "it still holds some"
    play.done(0, [1] * 5)
    assert play.given() == [(0, 6)]


@pytest.mark.parametrize(
    ("took_ns", "given"),
    [
        (QUICK_SHARE_NS_MIN // 2, [2, 2, 4, 3, 2, 1]),
        (QUICK_SHARE_NS_MIN // 4, [2, 2, 4, 4, 2]),
        (1, [2, 2, 4, 4, 2]),
    ],
)
def test_an_instance_gets_its_share_or_what_is_quickly_over(took_ns: int, given: list[int]) -> None:
    """Of 14 that wait, in turn."""
    play = Play(0, 1)
    play.submit(16)
    play.actions()
    seen = []
    for step in range(len(given)):
        play.all_done(step % 2, took_ns)
        ((_, count),) = play.given()
        seen.append(count)
    assert seen == given


def test_what_is_held_behind_another_batch_counts_as_waiting() -> None:
    play, _ = quick(4)
    assert play.core.snapshot() == CoreSnapshot(queued=3, executing=1, idle_instances=0)
    play.done(0, [1])
    assert play.core.snapshot() == CoreSnapshot(queued=2, executing=1, idle_instances=0)


def test_an_instance_that_takes_long_is_asked_for_what_it_has_not_started() -> None:
    play, (first, second, third, fourth) = quick(4)
    assert play.core.next_deadline_ns() == UNREPORTED_NS_MAX
    play.core.advance(UNREPORTED_NS_MAX)
    assert play.actions() == [Revoke(0)]
    assert play.core.next_deadline_ns() is None
    play.done(0, [1], UNREPORTED_NS_MAX)
    play.core.revoked(0, UNREPORTED_NS_MAX, 2)
    assert play.actions() == [Respond((first,))]
    assert play.core.snapshot() == CoreSnapshot(queued=2, executing=1, idle_instances=0)
    play.core.add_instance(1, UNREPORTED_NS_MAX)
    assert play.actions() == [Dispatch(1, singles([third]))]
    play.core.done(0, 2 * UNREPORTED_NS_MAX)
    assert play.actions() == [Respond((second,)), Dispatch(0, singles([fourth]))], "in its old place"


def test_a_request_that_ends_behind_another_is_not_started_and_the_others_wait_in_their_places() -> None:
    play, (_, second, third, fourth) = quick(4)
    (later,) = play.submit(1, 1)
    play.core.cancel(third, 1)
    assert play.actions() == [Revoke(0)]
    play.core.revoked(0, 1, 3)
    assert play.core.snapshot() == CoreSnapshot(queued=3, executing=1, idle_instances=0)
    play.core.done(0, 2)
    ((instance, batches),) = [(each.instance, each.batches) for each in play.actions() if isinstance(each, Dispatch)]
    assert (instance, batches) == (0, singles([second, fourth, later]))
    assert third.phase is Phase.ENDED


def test_a_limit_holds_for_what_is_not_started() -> None:
    play, _ = quick(2)
    play.submit(1)
    first, second = Ticket(), Ticket(deadline_ns=10)
    for ticket in (first, second):
        play.core.submit(ticket, 0)
    play.all_done(0)
    play.actions()
    play.core.advance(10)
    assert play.actions() == [Revoke(0), Refuse(second, Outcome.TIMED_OUT)]


def test_nothing_is_given_behind_what_is_being_taken_back() -> None:
    play, tickets = slow()
    play.actions()
    play.core.cancel(tickets[2], SLOW_NS)
    play.core.submit(Ticket(), SLOW_NS)
    assert play.actions() == [Revoke(0)]
    play.core.revoked(0, SLOW_NS, 3)
    assert play.actions() == []
    play.submit(1, SLOW_NS)
    assert play.given() == [(0, PREFETCHED_BATCHES_MAX - 1)]


def test_one_that_was_passed_over_behind_a_quick_batch_leaves_the_instance_quick() -> None:
    """So it is asked for what it does not report while the next takes long."""
    play = Play(0, prefetch=True)
    play.submit(6)
    play.actions()
    play.done(0, [SLOW_NS])
    assert play.given() == [(0, PREFETCHED_BATCHES_MAX)]
    play.done(0, [1, 0])
    assert play.given() == []
    play.core.advance(UNREPORTED_NS_MAX)
    assert play.actions()[-1:] == [Revoke(0)]


def test_at_a_stop_what_a_quick_instance_holds_is_executed_and_what_comes_back_is_refused() -> None:
    play, (first, second) = quick(2)
    play.core.stop(1)
    assert play.actions() == []
    play.core.advance(UNREPORTED_NS_MAX)
    assert play.actions() == [Revoke(0)]
    play.core.revoked(0, UNREPORTED_NS_MAX, 1)
    play.core.done(0, UNREPORTED_NS_MAX)
    assert play.actions() == [Refuse(second, Outcome.STOPPING), Respond((first,))]


def test_a_driver_that_reports_too_much_raises() -> None:
    play, _ = quick(2)
    with pytest.raises(InvariantViolation, match="over with 3 batches and holds 2"):
        play.core.done(0, 1, [1, 1, 1])
    with pytest.raises(InvariantViolation, match="gives back 3 batches and holds 2"):
        play.core.revoked(0, 1, 3)


# The only instance of a slow model


def test_a_slow_instance_that_is_alone_holds_some_at_any_time() -> None:
    play, tickets = slow()
    assert play.actions()[1:] == [Dispatch(0, singles(tickets[:PREFETCHED_BATCHES_MAX]))]
    assert play.core.next_deadline_ns() is None, "it is not asked for them"
    play.core.done(0, SLOW_NS, [SLOW_NS])
    assert play.actions() == [Respond((tickets[0],)), Dispatch(0, singles(tickets[4:5]))]


@pytest.mark.parametrize(("prefetch", "took_ns", "count"), [(False, SLOW_NS, 1), (True, QUICK_BATCHES_NS_MAX, 2), (True, 0, 1)])
def test_one_that_may_not_or_is_quick_gets_nothing_behind_what_it_holds(prefetch: bool, took_ns: int, count: int) -> None:
    play, _ = slow(prefetch=prefetch, took_ns=took_ns)
    assert play.given() == [(0, count)]
    play.submit(1)
    assert play.given() == []


def test_of_two_slow_instances_none_holds_what_the_other_could_take() -> None:
    play = Play(0, 1, prefetch=True)
    play.submit(8)
    play.actions()
    for instance in (0, 1):
        play.done(instance, [SLOW_NS], SLOW_NS)
    assert play.given() == [(0, 1), (1, 1)]


def test_one_that_becomes_quick_is_asked_for_what_it_holds() -> None:
    play, _ = slow(waiting=12)
    play.actions()
    play.done(0, [1], SLOW_NS)
    assert play.actions()[1:] == [], "it holds three"
    assert play.core.next_deadline_ns() == SLOW_NS + UNREPORTED_NS_MAX
    play.done(0, [1, 1, 1], SLOW_NS)
    assert play.given()[0][1] > 1


CHANGES: list[tuple[Callable[[DefaultCore], None], list[object]]] = [
    (lambda core: core.remove_instance(0, SLOW_NS), []),
    (lambda core: core.retire_instance(0, SLOW_NS), [Retired(0)]),
    (lambda core: core.recall(SLOW_NS), []),
]


@pytest.mark.parametrize(("change", "more"), CHANGES)
def test_what_it_has_not_started_waits_for_others_when_it_goes_or_somebody_asks(
    change: Callable[[DefaultCore], None], more: list[object]
) -> None:
    play, tickets = slow()
    play.actions()
    change(play.core)
    assert play.actions() == [Revoke(0), *more]
    play.core.revoked(0, SLOW_NS, 3)
    assert play.actions() == []
    assert play.core.snapshot().queued == 5
    play.core.add_instance(1, SLOW_NS)
    assert play.actions() == [Dispatch(1, singles(tickets[1:2]))], "in its old place"


def test_another_instance_gets_its_share() -> None:
    play, tickets = slow()
    play.actions()
    play.core.add_instance(1, SLOW_NS, prefetch=True)
    assert play.actions() == [Revoke(0), Dispatch(1, singles(tickets[4:5]))]
    play.core.revoked(0, SLOW_NS, 3)
    play.core.done(1, SLOW_NS, [SLOW_NS])
    assert play.actions() == [Respond((tickets[4],)), Dispatch(1, singles(tickets[1:2]))]


def test_a_stop_refuses_what_is_not_started() -> None:
    play, tickets = slow()
    play.actions()
    play.core.stop(SLOW_NS)
    assert play.actions() == [*(Refuse(ticket, Outcome.STOPPING) for ticket in tickets[4:]), Revoke(0)]
    play.core.revoked(0, SLOW_NS, 3)
    assert play.actions() == [Refuse(ticket, Outcome.STOPPING) for ticket in tickets[1:4]]
