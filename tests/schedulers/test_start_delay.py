"""Schedulers that hold back until enough waits: TRITONSERVER_DELAY_SCHEDULER and TRITONSERVER_BACKLOG_DELAY_SCHEDULER."""

from __future__ import annotations

import pytest

from tests.schedulers.sequences import Play, options_of
from tpy.cli.parsing import UsageError, collect
from tpy.cli.serve_options import server_options
from tpy.config.model_config import DynamicBatching, ModelConfig
from tpy_data.schedulers.core import StartDelay, make_core
from tpy_data.schedulers.core.contract import Action, Dispatch, Respond, Ticket
from tpy_data.schedulers.core.default import DefaultCore
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions


def dispatched(actions: list[Action]) -> list[list[Ticket]]:
    return [list(action.batches[0]) for action in actions if isinstance(action, Dispatch)]


def test_the_dynamic_batcher_holds_back_once_until_so_many_are_queued() -> None:
    core = DynamicCore(DynamicOptions(batch_size_max=8, preferred=frozenset({8})), StartDelay(queued=3))
    core.add_instance(0, 0)
    tickets = [Ticket(batch_size=1, signature="a") for _ in range(4)]
    for now_ns, ticket in enumerate(tickets[:2]):
        core.submit(ticket, now_ns)
    core.advance(10**12)
    assert not core.take_actions()
    assert not core.wants_instance(10**12)
    assert core.next_deadline_ns() is None
    core.submit(tickets[2], 10**12)
    assert dispatched(core.take_actions()) == [tickets[:3]]
    core.done(0, 10**12)
    core.submit(tickets[3], 10**12)
    assert dispatched(core.take_actions()) == [tickets[3:]]


def test_what_expires_or_is_cancelled_meanwhile_is_not_counted() -> None:
    core = DynamicCore(DynamicOptions(batch_size_max=8, preferred=frozenset({8})), StartDelay(queued=2))
    core.add_instance(0, 0)
    gone, late, one, two = (Ticket(batch_size=1, signature="a", deadline_ns=ns) for ns in (None, 6, None, None))
    core.submit(gone, 0)
    core.cancel(gone, 1)
    core.submit(late, 1)
    assert core.next_deadline_ns() == 6
    core.submit(one, 7)
    assert not dispatched(core.take_actions())
    core.submit(two, 8)
    assert dispatched(core.take_actions()) == [[one, two]]


def test_sequences_count_over_all_slots_and_instances() -> None:
    play = Play(instances=2, delay=StartDelay(queued=4))
    a, b, c = play.tickets(1, 2, 3)
    assert not play.batches()
    a2 = play.ticket(1)
    assert sorted(map(repr, [one for batch in play.batches() for one in batch])) == ["1S", "2S", "3S"]
    assert a2.live is a.live
    assert len({b.live, c.live, a.live}) == 3


def test_the_backlog_is_counted_apart() -> None:
    play = Play(options_of(slots=2), delay=StartDelay(queued=2, backlogged=2))
    in_slots = play.tickets(1, 2)
    play.ticket(3, "S")
    assert not play.batches()
    play.ticket(3)
    assert play.batches() == [in_slots]


def test_the_backlog_counts_only_beside_the_queue() -> None:
    play = Play(options_of(slots=2), delay=StartDelay(backlogged=2))
    assert [play.ticket(1, "S")] in play.batches()


def test_oldest_counts_what_is_ready_for_an_instance() -> None:
    """The next request of each of its sequences, so never more than it holds."""
    play = Play(options_of(strategy=DynamicOptions(batch_size_max=4, preferred=frozenset({4}))), delay=StartDelay(queued=2))
    first = play.ticket(1, "S")
    play.ticket(1)
    assert not play.batches()
    second = play.ticket(2, "S")
    assert play.batches() == [[first, second]]


def test_models_without_a_scheduler_start_at_once() -> None:
    delay = StartDelay(queued=9)
    plain = make_core(ModelConfig(name="m", max_batch_size=8), delay)
    assert isinstance(plain, DefaultCore)
    plain.add_instance(0, 0)
    plain.submit(Ticket(batch_size=1, signature="a"), 0)
    assert dispatched(plain.take_actions())
    batching = make_core(ModelConfig(name="m", max_batch_size=8, dynamic_batching=DynamicBatching()), delay)
    batching.add_instance(0, 0)
    batching.submit(Ticket(batch_size=1, signature="a"), 0)
    assert not batching.take_actions()


def test_what_waits_is_refused_at_the_end() -> None:
    core = DynamicCore(DynamicOptions(batch_size_max=8, preferred=frozenset({8})), StartDelay(queued=3))
    core.add_instance(0, 0)
    core.submit(Ticket(batch_size=1, signature="a"), 0)
    core.stop(1)
    [action] = core.take_actions()
    assert not isinstance(action, (Dispatch, Respond))


def test_the_variables_are_read_with_the_command_line() -> None:
    values, warnings = collect({"model_repository": ["r"]}, {})
    options = server_options(
        values, warnings, {"TRITONSERVER_DELAY_SCHEDULER": "12", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "2"}
    )
    assert options.start_delay == StartDelay(queued=12, backlogged=2)
    assert options.warnings[-1].startswith("Delaying every scheduler until 12 queued requests and 2 backlog queued requests")
    assert server_options(values, warnings, {"TRITONSERVER_DELAY_SCHEDULER": ""}).start_delay == StartDelay()
    for text in ("x", "-1", "1.5"):
        with pytest.raises(UsageError, match=f"TRITONSERVER_DELAY_SCHEDULER: expected a number of requests, got '{text}'"):
            server_options(values, warnings, {"TRITONSERVER_DELAY_SCHEDULER": text})
