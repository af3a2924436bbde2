"""Sequences whose instance goes, and the end of a scheduler of sequences."""

from __future__ import annotations

import pytest

from tests.schedulers.sequences import IDLE_NS, Play, ended, options_of, refused, responded, retired, slot_of
from tpy.errors import InvalidArgument, InvariantViolation, Unavailable
from tpy_data.schedulers.core.contract import CoreSnapshot, Dispatch, Outcome, Phase, SequenceEnd

STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"


# Instances that go.


def test_a_lost_instance_takes_its_sequences_along() -> None:
    play = Play(options_of(1), instances=2)
    a, b, a2 = play.ticket(1, "S"), play.ticket(2, "S"), play.ticket(1)
    waiting = play.ticket(3, "S")
    play.actions()
    play.core.remove_instance(0, 0)
    actions = play.actions()
    assert refused(actions) == [(a2, Outcome.SEQUENCE_LOST)]
    play.core.done(0, 0)
    actions = play.actions()
    assert responded(actions) == [a]
    assert ended(actions) == [(1, SequenceEnd.LOST)]
    with pytest.raises(Unavailable, match=r"sequence 1 of model 'm' was lost: the model instance .* anew with the START flag"):
        play.ticket(1)
    assert b.phase is Phase.EXECUTING
    assert slot_of(waiting) == (None, None)
    play.core.add_instance(0, 0)  # its replacement
    assert play.batches() == [[waiting]]
    assert slot_of(play.ticket(1, "S")) == (None, None)
    play.ticket(1)


def test_a_rescheduled_request_of_a_lost_instance_is_refused() -> None:
    play = Play()
    a = play.ticket(1, "S")
    play.core.reschedule(a, 0)
    play.core.remove_instance(0, 0)
    play.core.done(0, 0)
    assert refused(play.actions()) == [(a, Outcome.SEQUENCE_LOST)]


def test_only_so_many_lost_sequences_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpy_data.schedulers.core.sequence_ids.SEQUENCES_LOST_REMEMBERED_MAX", 2)
    play = Play()
    play.tickets(1, 2, 3)
    play.complete_all()
    play.core.remove_instance(0, 0)
    with pytest.raises(InvalidArgument):
        play.ticket(1)
    for id in (2, 3):
        with pytest.raises(Unavailable):
            play.ticket(id)


def test_a_retiring_instance_keeps_its_sequences_and_takes_no_others() -> None:
    play = Play(options_of(2), instances=2)
    play.ticket(1, "S")
    play.ticket(2, "S")
    play.actions()
    play.core.retire_instance(0, 0)
    assert retired(play.actions()) == []
    assert [slot_of(one) for one in play.tickets(3, 4)] == [(1, 1), (None, None)]
    last = play.ticket(1, "E")
    play.core.done(0, 0)
    assert [list(one.batches[0]) for one in play.actions() if isinstance(one, Dispatch)] == [[last]]
    play.core.done(0, 0)
    actions = play.actions()
    assert retired(actions) == [0]
    with pytest.raises(InvariantViolation):
        play.core.remove_instance(0, 0)


def test_an_empty_instance_retires_at_once_and_an_idle_one_in_time() -> None:
    play = Play(instances=2)
    play.ticket(1, "S")
    play.complete_all()
    play.core.retire_instance(1, 0)
    play.core.retire_instance(0, 0)
    assert retired(play.actions()) == [1]
    assert retired(play.advance_to(IDLE_NS)) == [0]
    waiting = play.ticket(2, "S")
    assert slot_of(waiting) == (None, None)


def test_an_instance_may_be_removed_in_the_moment_in_which_it_would_retire() -> None:
    play = Play()
    play.ticket(1, "S")
    play.complete_all()
    play.core.retire_instance(0, 0)
    play.core.remove_instance(0, IDLE_NS)
    actions = play.actions()
    assert ended(actions) == [(1, SequenceEnd.IDLE)]
    assert retired(actions) == []


# The end.


def test_stopping_refuses_what_waits_and_ends_every_sequence() -> None:
    play = Play(options_of(2))
    a, b, b2, c = play.ticket(1, "S"), play.ticket(2, "S"), play.ticket(2), play.ticket(3, "S")
    play.actions()
    play.core.stop(0)
    actions = play.actions()
    assert refused(actions) == [(b, Outcome.STOPPING), (b2, Outcome.STOPPING), (c, Outcome.STOPPING)]
    with pytest.raises(Unavailable) as error:
        play.ticket(1)
    assert error.value.message == STOPPING
    play.core.done(0, 0)
    assert responded(play.actions()) == [a]
    assert play.core.snapshot() == CoreSnapshot(queued=0, executing=0, idle_instances=1)
    assert play.core.next_deadline_ns() is None


def test_refusing_what_waits_ends_those_sequences_and_no_others() -> None:
    play = Play(options_of(1))
    a = play.ticket(1, "S")
    b = play.ticket(2, "S")
    play.actions()
    play.core.refuse_waiting(0)
    actions = play.actions()
    assert refused(actions) == [(b, Outcome.NO_INSTANCE)]
    assert ended(actions) == [(2, SequenceEnd.REFUSED)]
    play.core.done(0, 0)
    assert responded(play.actions()) == [a]
    play.ticket(1)
