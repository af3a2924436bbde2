"""Batches of the strategy direct."""

from __future__ import annotations

from tests.schedulers.sequences import Play, options_of
from tpy_data.schedulers.core.contract import Dispatch
from tpy_data.schedulers.core.sequence_options import DirectOptions, SequenceOptions


def waiting_for(ready_min: int, delay_ns: int = 100) -> SequenceOptions:
    return options_of(strategy=DirectOptions(queue_delay_ns_max=delay_ns, ready_min=ready_min))


def test_a_batch_has_a_place_for_every_slot_up_to_the_last_that_runs() -> None:
    play = Play()
    play.tickets(1, 2, 3, 4)
    play.complete_all()
    third = play.ticket(3)
    assert play.actions() == [Dispatch(0, ([third],), slots=[None, None, third])]
    first = play.ticket(1)
    play.core.done(0, 0)
    assert play.actions()[1:] == [Dispatch(0, ([first],), slots=[first])]


def test_the_next_batch_takes_one_request_of_each_sequence_when_the_last_is_done() -> None:
    play = Play()
    a, a2, b, b2 = play.ticket(1, "S"), play.ticket(1), play.ticket(2, "S"), play.ticket(2)
    assert play.batches() == [[a]]
    assert play.complete() == [[a2, b]]
    assert play.complete() == [[b2]]


def test_a_slot_that_was_given_up_is_the_first_to_be_taken() -> None:
    play = Play()
    play.ticket(1, "SE")
    play.tickets(2, 3)
    play.complete_all()
    new = play.ticket(4, "S")
    assert new.live is not None
    assert (new.live.instance, new.live.slot) == (0, 0)


def test_instances_fill_up_evenly() -> None:
    play = Play(instances=2)
    places = [(one.live.slot, one.live.instance) for one in play.tickets(1, 2, 3, 4, 5) if one.live is not None]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


def test_what_cannot_share_a_batch_takes_turns_and_the_oldest_comes_first() -> None:
    play = Play()
    play.ticket(1, "S")
    a = play.ticket(1, signature="a")
    b = play.ticket(2, "S", signature="b")
    c = play.ticket(3, "S", signature="a")
    a2 = play.ticket(1, signature="a")
    play.actions()
    assert play.complete() == [[a, c]]
    play.core.done(0, 0)
    assert [action for action in play.actions() if isinstance(action, Dispatch)] == [Dispatch(0, ([b],), slots=[None, b])]
    assert play.complete() == [[a2]]


def test_a_batch_waits_for_enough_slots() -> None:
    play = Play(waiting_for(ready_min=2))
    a = play.ticket(1, "S")
    assert play.batches() == []
    assert play.core.next_deadline_ns() == 100
    b = play.ticket(2, "S")
    assert play.batches() == [[a, b]]


def test_a_batch_waits_only_so_long() -> None:
    play = Play(waiting_for(ready_min=2))
    a = play.ticket(1, "S")
    assert play.advance_to(99) == []
    assert play.advance_to(100) == [Dispatch(0, ([a],), slots=[a])]


def test_the_wait_counts_from_the_arrival_of_the_oldest_request() -> None:
    play = Play(waiting_for(ready_min=3))
    a = play.ticket(1, "S")
    play.advance_to(60)
    b = play.ticket(2, "S")
    assert play.core.next_deadline_ns() == 100
    play.core.cancel(a, 60)
    play.actions()
    assert play.core.next_deadline_ns() == 160
    assert play.advance_to(160) == [Dispatch(0, ([b],), slots=[None, b])]


def test_a_share_of_slots_without_a_delay_is_not_waited_for() -> None:
    play = Play(waiting_for(ready_min=4, delay_ns=0))
    a = play.ticket(1, "S")
    assert play.batches() == [[a]]


def test_many_cancelled_offers_leave_nothing_behind() -> None:
    play = Play(waiting_for(ready_min=4, delay_ns=10_000))
    kept = play.ticket(1, "S")
    for number in range(1000):
        play.core.cancel(play.ticket(f"gone {number}", "S"), 0)
    other = play.ticket(2, "S")
    play.actions()
    assert play.advance_to(10_000) == [Dispatch(0, ([kept, other],), slots=[kept, other])]
