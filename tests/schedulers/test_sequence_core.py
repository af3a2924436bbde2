"""The life of sequences, one rule at a time: how they begin, wait for a slot, and end."""

from __future__ import annotations

import pytest

from tests.schedulers.sequences import IDLE_NS, Play, ended, options_of, refused, responded, slot_of
from tpy.errors import InvalidArgument, InvariantViolation, Unavailable
from tpy_data.schedulers.core.contract import CoreSnapshot, Dispatch, Outcome, Phase, SequenceEnd

# What may come in.


@pytest.mark.parametrize("id", [None, 0, ""])
def test_a_request_needs_a_correlation_id(id: int | str | None) -> None:
    with pytest.raises(InvalidArgument) as error:
        Play().ticket(id, "S")
    assert error.value.message == "inference request to model 'm' must specify a non-zero or non-empty correlation ID"


@pytest.mark.parametrize("id", [7, "seven"])
def test_a_sequence_begins_with_start(id: int | str) -> None:
    with pytest.raises(InvalidArgument) as error:
        Play().ticket(id)
    assert error.value.message == (
        f"inference request for sequence {id} to model 'm' must specify the START flag on the first request of the sequence"
    )


def test_a_request_has_one_row() -> None:
    with pytest.raises(InvalidArgument) as error:
        Play().ticket(None, batch_size=2)
    assert error.value.message == (
        "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
    )


def test_numbers_and_strings_are_different_ids() -> None:
    play = Play()
    play.ticket(1, "S")
    with pytest.raises(InvalidArgument):
        play.ticket("1")


def test_too_many_waiting_requests_are_refused() -> None:
    play = Play(options_of(waiting_max=2))
    play.ticket(1, "S")
    play.ticket(1)
    play.ticket(1)
    with pytest.raises(Unavailable, match=r"^Exceeds maximum queue size$"):
        play.ticket(1)
    play.actions()
    play.complete()
    play.ticket(1)


def test_too_many_live_sequences_are_refused() -> None:
    play = Play(options_of(1, live_max=2))
    play.tickets(1, 2)
    with pytest.raises(Unavailable, match="model 'm' has 2 live sequences"):
        play.ticket(3, "S")
    play.ticket(1)


# Slots and the backlog.


def test_a_sequence_keeps_its_slot_until_its_end_was_executed() -> None:
    play = Play(options_of(1))
    play.ticket(1, "S")
    waiting = play.ticket(2, "S")
    play.actions()
    assert play.complete() == []  # 1 has nothing to run but keeps the slot
    end = play.ticket(1, "E")
    assert play.batches() == [[end]]
    assert slot_of(waiting) == (None, None)
    play.core.done(0, 0)
    actions = play.actions()
    assert ended(actions) == [(1, SequenceEnd.ENDED)]
    assert Dispatch(0, ([waiting],), slots=[waiting]) in actions
    assert slot_of(waiting) == (0, 0)


def test_an_id_is_free_as_soon_as_its_end_has_come() -> None:
    play = Play()
    play.ticket(1, "S")
    play.ticket(1, "E")
    with pytest.raises(InvalidArgument, match="START"):
        play.ticket(1)
    again = play.ticket(1, "S")
    assert slot_of(again) == (0, 1)


def test_the_backlog_is_first_come_first_served_with_all_requests_of_a_sequence() -> None:
    play = Play(options_of(1))
    play.ticket(1, "SE")
    b, c, b2, b3 = play.ticket(2, "S"), play.ticket(3, "SE"), play.ticket(2), play.ticket(2, "E")
    play.actions()
    for expected in (b, b2, b3, c):
        assert play.complete() == [[expected]]
    play.complete()
    assert play.core.snapshot() == CoreSnapshot(queued=0, executing=0, idle_instances=1)


def test_a_new_instance_takes_from_the_backlog() -> None:
    play = Play(options_of(2), instances=0)
    a, b, c = play.tickets(1, 2, 3)
    assert play.actions() == []
    play.core.add_instance(5, 0)
    assert play.batches() == [[a, b]]
    assert (slot_of(a), slot_of(b), slot_of(c)) == ((5, 0), (5, 1), (None, None))


def test_a_timeout_counts_in_the_backlog_and_ends_the_whole_sequence() -> None:
    play = Play(options_of(1))
    play.ticket(1, "S", timeout_ns=5)  # in a slot it has no effect
    play.ticket(2, "S")
    play.now_ns = 3
    play.ticket(2, timeout_ns=10)
    assert play.core.next_deadline_ns() == 13
    play.actions()
    actions = play.advance_to(13)
    assert [outcome for _, outcome in refused(actions)] == [Outcome.SEQUENCE_TIMED_OUT] * 2
    assert Outcome.SEQUENCE_TIMED_OUT.value == "timeout of the corresponding sequence has been expired"
    assert ended(actions) == [(2, SequenceEnd.TIMED_OUT)]
    with pytest.raises(InvalidArgument, match="START"):
        play.ticket(2)


def test_a_timeout_is_over_when_the_sequence_has_a_slot() -> None:
    play = Play(options_of(1))
    play.ticket(1, "SE")
    play.ticket(2, "S", timeout_ns=10)
    play.actions()
    play.complete()
    assert play.core.next_deadline_ns() is None
    assert play.advance_to(11) == []


# START on a live sequence.


def test_a_start_on_a_live_sequence_begins_another_behind_it_in_the_same_slot() -> None:
    play = Play()
    play.ticket(9, "S")
    old, old2 = play.ticket(1, "S"), play.ticket(1)
    new, new2 = play.ticket(1, "S"), play.ticket(1, "E")
    play.ticket(2, "S")
    assert old.live is old2.live is not new.live is new2.live
    assert old.live is not None
    assert new.live is not None
    assert (old.live.restarted, new.live.restarted) == (False, True)
    assert slot_of(new) == slot_of(old) == (0, 1)
    play.actions()
    order: list[object] = []
    for _ in range(5):
        play.core.done(0, 0)
        actions = play.actions()
        order += [ticket for batch in actions if isinstance(batch, Dispatch) for ticket in batch.batches[0] if ticket.sequence]
        order += ended(actions)
        if not play.core.snapshot().executing:
            break
    assert [one for one in order if one in (old, old2, new, new2) or isinstance(one, tuple)] == [
        old,
        old2,
        new,
        (1, SequenceEnd.RESTARTED),
        new2,
        (1, SequenceEnd.ENDED),
    ]


def test_a_start_on_an_idle_sequence_ends_it_at_once() -> None:
    play = Play()
    play.ticket(1, "S")
    play.complete_all()
    play.ticket(1, "S")
    assert ended(play.actions()) == [(1, SequenceEnd.RESTARTED)]


def test_a_start_in_the_backlog_keeps_the_place_there() -> None:
    play = Play(options_of(1))
    play.ticket(1, "SE")
    b, c, b2 = play.ticket(2, "S"), play.ticket(3, "S"), play.ticket(2, "SE")
    play.actions()
    assert play.complete() == [[b]]
    assert play.complete() == [[b2]]
    assert play.complete() == [[c]]


# Idle time.


def test_an_idle_sequence_loses_its_slot_to_the_backlog() -> None:
    play = Play(options_of(1))
    play.ticket(1, "S")
    waiting = play.ticket(2, "S")
    play.complete_all()
    assert play.core.next_deadline_ns() == IDLE_NS
    assert play.advance_to(IDLE_NS - 1) == []
    actions = play.advance_to(IDLE_NS)
    assert ended(actions) == [(1, SequenceEnd.IDLE)]
    assert Dispatch(0, ([waiting],), slots=[waiting]) in actions
    with pytest.raises(InvalidArgument, match="START"):
        play.ticket(1)


def test_a_sequence_whose_request_waits_or_runs_is_not_idle() -> None:
    play = Play()
    play.ticket(1, "S")
    play.ticket(1)
    play.actions()
    assert play.core.next_deadline_ns() is None
    play.now_ns = 5 * IDLE_NS
    play.complete()
    assert play.core.next_deadline_ns() is None
    play.now_ns = 10 * IDLE_NS
    play.complete()
    assert play.core.next_deadline_ns() == 11 * IDLE_NS


def test_each_request_begins_the_idle_time_anew() -> None:
    play = Play()
    play.ticket(1, "S")
    play.complete_all()
    play.now_ns = IDLE_NS - 1
    play.ticket(1)
    play.complete_all()
    assert play.core.next_deadline_ns() == 2 * IDLE_NS - 1


def test_a_sequence_in_the_backlog_is_never_idle() -> None:
    play = Play(options_of(1))
    play.ticket(1, "S")
    play.ticket(2, "S")
    play.actions()
    assert play.advance_to(100 * IDLE_NS) == []
    play.ticket(2)


# Cancelling and deadlines.


def test_cancelling_a_waiting_request_cancels_what_is_behind_it_and_ends_the_sequence() -> None:
    play = Play(options_of(1))
    a, b, c, d = play.ticket(1, "S"), play.ticket(1), play.ticket(1), play.ticket(1, "E")
    waiting = play.ticket(2, "S")
    play.actions()
    play.core.cancel(c, 0)
    assert refused(play.actions()) == [(d, Outcome.CANCELLED)]
    assert c.phase is d.phase is Phase.ENDED
    assert play.complete() == [[b]]
    play.core.done(0, 0)
    actions = play.actions()
    assert responded(actions) == [b]
    assert ended(actions) == [(1, SequenceEnd.CANCELLED)]
    assert Dispatch(0, ([waiting],), slots=[waiting]) in actions
    assert a.phase is Phase.ENDED


def test_cancelling_in_the_backlog_cancels_all_of_the_sequence() -> None:
    play = Play(options_of(1))
    play.ticket(1, "S")
    b, b2, b3 = play.ticket(2, "S"), play.ticket(2), play.ticket(2)
    play.actions()
    play.core.cancel(b2, 0)
    actions = play.actions()
    assert refused(actions) == [(b, Outcome.CANCELLED), (b3, Outcome.CANCELLED)]
    assert ended(actions) == [(2, SequenceEnd.CANCELLED)]
    assert play.core.snapshot() == CoreSnapshot(queued=0, executing=1, idle_instances=0, sequences=1)


def test_cancelling_does_not_touch_a_sequence_that_was_begun_after_it() -> None:
    play = Play()
    play.ticket(1, "S")
    old, new = play.ticket(1), play.ticket(1, "S")
    play.actions()
    play.core.cancel(old, 0)
    assert refused(play.actions()) == []
    assert play.complete() == [[new]]
    play.ticket(1)


def test_cancelling_an_executing_request_lets_the_sequence_go_on() -> None:
    play = Play()
    a, a2 = play.ticket(1, "S"), play.ticket(1)
    play.actions()
    play.core.cancel(a, 0)
    assert play.core.snapshot() == CoreSnapshot(queued=1, executing=0, idle_instances=0, sequences=1)
    play.core.done(0, 0)
    actions = play.actions()
    assert responded(actions) == []
    assert [action.batches[0] for action in actions if isinstance(action, Dispatch)] == [[a2]]


def test_a_deadline_that_passes_in_the_queue_ends_the_sequence() -> None:
    play = Play()
    play.ticket(1, "S")
    b, c = play.ticket(1, deadline_ns=10), play.ticket(1)
    play.actions()
    assert refused(play.advance_to(10)) == [(b, Outcome.TIMED_OUT), (c, Outcome.CANCELLED)]


def test_a_deadline_that_passes_while_it_runs_drops_the_answer_only() -> None:
    play = Play()
    a = play.ticket(1, "S", deadline_ns=10)
    play.actions()
    assert refused(play.advance_to(10)) == [(a, Outcome.TIMED_OUT)]
    assert play.complete() == []
    play.ticket(1)


def test_a_request_that_comes_too_late_is_refused_and_ends_its_sequence() -> None:
    play = Play()
    play.now_ns = 10
    late = play.ticket(1, "S", deadline_ns=10)
    actions = play.actions()
    assert refused(actions) == [(late, Outcome.TIMED_OUT)]
    assert ended(actions) == [(1, SequenceEnd.CANCELLED)]
    assert play.core.snapshot() == CoreSnapshot(queued=0, executing=0, idle_instances=1)


# Rescheduling.


def test_a_rescheduled_request_runs_again_before_others_of_its_sequence_and_without_flags() -> None:
    play = Play()
    a, a2 = play.ticket(1, "S"), play.ticket(1)
    play.actions()
    play.core.reschedule(a, 0)
    assert play.complete() == [[a]]
    assert a.sequence is not None
    assert (a.sequence.start, a.sequence.end) == (False, False)
    assert play.complete() == [[a2]]


def test_a_rescheduled_request_keeps_its_deadline() -> None:
    play = Play()
    a = play.ticket(1, "S", deadline_ns=10)
    play.core.reschedule(a, 0)
    play.complete()
    assert refused(play.advance_to(10)) == [(a, Outcome.TIMED_OUT)]


def test_a_cancelled_request_is_not_run_again() -> None:
    play = Play()
    a = play.ticket(1, "S")
    play.core.reschedule(a, 0)
    play.core.cancel(a, 0)
    play.actions()
    assert play.complete() == []
    assert play.core.snapshot() == CoreSnapshot(queued=0, executing=0, idle_instances=1, sequences=1)


def test_an_iterative_request_needs_no_id_and_its_sequence_ends_with_it() -> None:
    play = Play(options_of(1, iterative=True))
    a, b = play.ticket(None), play.ticket(None)
    assert a.sequence is not None
    assert a.sequence.start
    assert b.sequence is not None
    assert a.sequence.correlation_id != b.sequence.correlation_id
    play.actions()
    play.core.reschedule(a, 0)
    assert play.complete() == [[a]]
    play.core.done(0, 0)
    actions = play.actions()
    assert ended(actions) == [(a.sequence.correlation_id, SequenceEnd.ENDED)]
    assert Dispatch(0, ([b],), slots=[b]) in actions


def test_made_up_ids_are_not_those_of_live_sequences() -> None:
    play = Play(options_of(iterative=True))
    play.ticket(1, "S")
    made_up = play.ticket(None)
    assert made_up.sequence is not None
    assert made_up.sequence.correlation_id == 2


# What the driver must not do.


def test_a_broken_contract_is_found() -> None:
    play = Play()
    a = play.ticket(1, "S")
    b = play.ticket(1)
    play.actions()
    with pytest.raises(InvariantViolation, match="not executing"):
        play.core.reschedule(b, 0)
    with pytest.raises(InvariantViolation, match="added twice"):
        play.core.add_instance(0, 0)
    with pytest.raises(InvariantViolation, match="not a member"):
        play.core.done(7, 0)
    play.core.done(0, 0)
    play.core.done(0, 0)
    with pytest.raises(InvariantViolation, match="not given"):
        play.core.done(0, 0)
    assert a.phase is b.phase is Phase.ENDED
