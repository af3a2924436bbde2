"""Batches of the strategy oldest."""

from __future__ import annotations

from tests.schedulers.sequences import Play, options_of
from tpy_data.schedulers.core.contract import Dispatch
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.overlap import OverlapTerms
from tpy_data.schedulers.core.sequence_options import SequenceOptions


def oldest(batch: int = 2, *, slots: int = 8, delay_ns: int = 0, preferred: int | None = None) -> SequenceOptions:
    dynamic = DynamicOptions(batch_size_max=batch, preferred=frozenset({preferred or batch}), queue_delay_ns_max=delay_ns)
    return options_of(slots, strategy=dynamic)


def test_batches_have_no_empty_places() -> None:
    play = Play(oldest(batch=4))
    play.tickets(1, 2, 3)
    play.complete_all()
    third = play.ticket(3)
    assert play.actions() == [Dispatch(0, ([third],))]


def test_one_request_of_a_sequence_at_a_time_in_the_order_in_which_they_became_ready() -> None:
    play = Play(oldest(batch=2))
    a, a2, b, c = play.ticket(1, "S"), play.ticket(1), play.ticket(2, "S"), play.ticket(3, "S")
    assert play.batches() == [[a]]
    assert play.complete() == [[b, c]]
    assert play.complete() == [[a2]]


def test_more_sequences_than_fit_a_batch_take_turns() -> None:
    play = Play(oldest(batch=2))
    first = play.ticket(9, "S")
    waiting = play.tickets(1, 2, 3, 4, 5)
    assert play.batches() == [[first]]
    assert play.complete() == [waiting[:2]]
    assert play.complete() == [waiting[2:4]]
    assert play.complete() == [waiting[4:]]


def test_what_cannot_share_a_batch_closes_it() -> None:
    play = Play(oldest(batch=4))
    play.ticket(9, "S")
    a, b, c = play.ticket(1, "S"), play.ticket(2, "S", signature="b"), play.ticket(3, "S")
    play.actions()
    assert play.complete() == [[a]]
    assert play.complete() == [[b]]
    assert play.complete() == [[c]]


def test_the_delay_counts_from_when_a_request_was_ready() -> None:
    play = Play(oldest(batch=4, delay_ns=50))
    a = play.ticket(1, "S")
    a2 = play.ticket(1)
    assert play.batches() == []
    assert play.advance_to(50) == [Dispatch(0, ([a],))]
    play.now_ns = 200
    assert play.complete() == []
    assert play.core.next_deadline_ns() == 250
    assert play.advance_to(250) == [Dispatch(0, ([a2],))]


def test_a_preferred_size_is_sent_at_once() -> None:
    play = Play(oldest(batch=4, delay_ns=50, preferred=2))
    a, b = play.tickets(1, 2)
    assert play.batches() == [[a, b]]


def test_each_instance_batches_its_own_sequences() -> None:
    play = Play(oldest(batch=4), instances=2)
    a, b, c, d = play.tickets(1, 2, 3, 4)
    assert play.batches() == [[a], [b]]
    assert play.complete(0) == [[c]]
    assert play.complete(1) == [[d]]


def test_a_withdrawn_request_does_not_go_into_the_batch_that_was_being_formed() -> None:
    play = Play(oldest(batch=4, delay_ns=50))
    a, b = play.tickets(1, 2)
    play.core.cancel(a, 0)
    play.actions()
    assert play.advance_to(50) == [Dispatch(0, ([b],))]


def test_sequences_that_fall_into_step_are_served_in_halves() -> None:
    """All of them send their next request when they have the answer; see OverlapRule."""
    terms = OverlapTerms(requests_min=4, convoys_min=2, batches_max=9)
    play = Play(options_of(8, strategy=DynamicOptions(batch_size_max=8, preferred=frozenset({8}), overlap=terms)))
    play.ticket(9, "S")
    play.actions()
    others = range(1, 8)
    play.tickets(*others)
    assert [len(batch) for batch in play.complete(took_ns=10)] == [7]
    sizes = []
    for _ in range(3):
        # The large batch is over; the one that was left behind is executed while the others come again.
        play.ticket(9)
        play.now_ns += 100
        assert [len(batch) for batch in play.complete(took_ns=100)] == [1]
        play.tickets(*others, flags="")
        play.now_ns += 100
        sizes += [len(batch) for batch in play.complete(took_ns=10)]
    assert sizes == [7, 7, 4]
