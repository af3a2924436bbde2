"""The small parts of the cores: what their users rely on, where no history of a whole core shows it."""

from __future__ import annotations

import pytest

from tpy.config.model_config import ModelConfig, SequenceBatching, StrategyDirect
from tpy.errors import InvalidArgument, InvariantViolation
from tpy_data.schedulers.core.batch_forming import BatchForming
from tpy_data.schedulers.core.contract import Dispatch, Respond, Ticket
from tpy_data.schedulers.core.deadlines import Deadlines
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.instance_pool import InstancePool
from tpy_data.schedulers.core.rate_limiter import Demand, Grant, RateLimiterCore, Supply
from tpy_data.schedulers.core.sequence_backlog import SequenceBacklog
from tpy_data.schedulers.core.sequence_batcher import DirectBatcher
from tpy_data.schedulers.core.sequence_line import SequenceLine
from tpy_data.schedulers.core.sequence_options import DirectOptions, SequenceOptions, sequence_options
from tpy_data.schedulers.core.sequence_slots import SequenceInstance

GPU = ("R1", 0)


def line_with(ticket: Ticket) -> SequenceLine:
    """A line of one sequence, in which the ticket waits."""
    line = SequenceLine(7)
    ticket.live = line.begin()
    line.begin().waiting.append(ticket)
    line.sequences.popitem(last=False)
    return line


def test_a_new_ticket_asks_for_nothing_special() -> None:
    ticket = Ticket()
    assert (ticket.batch_size, ticket.priority, ticket.timeout_ns, ticket.deadline_ns) == (1, 0, 0, None)
    assert (ticket.queued_ns, ticket.ready_ns, ticket.arrival) == (0, 0, 0)


# Batches that form


@pytest.mark.parametrize(
    ("sizes", "at_once", "later"),
    [((1,), 0, 1), ((1, 1, 1), 2, 3), ((3, 1), 1, 2)],
)
def test_the_shortest_delay_is_one(sizes: tuple[int, ...], at_once: int, later: int) -> None:
    """Of a nanosecond: a batch waits for company, or goes in a preferred size, until it is over."""
    forming = BatchForming(DynamicOptions(batch_size_max=8, preferred=frozenset({2}), queue_delay_ns_max=1))
    forming.look([Ticket(batch_size=size) for size in sizes])
    assert (forming.ready_count(0), forming.ready_count(1)) == (at_once, later)


# Deadlines


def test_far_deadlines_of_tickets_that_are_gone_leave_no_heap_behind() -> None:
    deadlines = Deadlines()
    live = [Ticket() for _ in range(10)]
    for at_ns, ticket in enumerate(live):
        deadlines.add(ticket, at_ns)
    for _ in range(1000):
        ticket = Ticket()
        deadlines.add(ticket, 10**18)
        deadlines.discard(ticket)
        assert deadlines.entries <= 2 * 10 + 65
    assert [deadlines.pop_due(10**18) for _ in range(11)] == [*live, None]


# Instances


def test_an_instance_is_removed_once() -> None:
    pool = InstancePool()
    pool.add(1)
    pool.give(1, [[Ticket()]])
    pool.remove(1)
    with pytest.raises(InvariantViolation, match="removed twice"):
        pool.remove(1)


def test_idle_instances_that_were_taken_out_are_gone() -> None:
    pool = InstancePool()
    pool.add(1)
    pool.add(2)
    assert (pool.members, pool.take_idle(), pool.take_idle(), pool.members) == (2, [1, 2], [], 0)


# Rate limiter


def test_one_instance_of_a_group_at_a_time() -> None:
    core = RateLimiterCore()
    core.declare("g", [Demand(), Demand()])
    core.add("g", 1, Demand())
    core.add("g", 2, Demand())
    core.want("g")
    assert core.take_grants() == [Grant("g", 1)]  # whether a second one is wanted shows when the first has its work
    assert core.take_grants() == [Grant("g", 2)]
    assert core.take_grants() == []


def test_instances_that_break_the_contract_of_the_rate_limiter() -> None:
    core = RateLimiterCore()
    core.declare("g", [Demand({GPU: 1})])
    core.add("g", 1, Demand({GPU: 1}))
    with pytest.raises(InvariantViolation, match="added twice"):
        core.add("g", 1, Demand({GPU: 1}))
    for instance in (1, 2):
        with pytest.raises(InvariantViolation, match="does not hold"):
            core.release("g", instance)
    core.release("gone", 1)
    assert core.used() == {}


def test_a_run_that_did_not_take_place_costs_no_turn() -> None:
    core = RateLimiterCore(Supply(counts={("R1", None): 1}))
    for group in "ab":
        core.declare(group, [Demand({GPU: 1}, 1)])
        core.add(group, 1, Demand({GPU: 1}, 1))
        core.want(group)
    assert core.take_grants() == [Grant("a", 1)]
    core.release("a", 1, used=False)
    assert core.take_grants() == [Grant("a", 1)]
    core.release("a", 1)
    assert core.take_grants() == [Grant("b", 1)]


def test_more_than_there_is_can_never_run() -> None:
    core = RateLimiterCore(Supply(counts={("R1", 0): 2, ("R2", None): 3}))
    core.declare("g", [Demand({GPU: 2, ("R2", 0): 3})])
    with pytest.raises(InvalidArgument, match=r'"R1" is limited to 2 .* minimum required count is 3'):
        core.declare("h", [Demand({GPU: 3})])
    with pytest.raises(InvalidArgument, match='"R3" is limited to 0'):
        core.declare("h", [Demand({("R3", None): 1})])
    assert core.supply() == {GPU: 2, ("R2", 0): 3}


# Sequences


def test_the_shortest_time_out_counts_from_when_its_request_joined() -> None:
    backlog = SequenceBacklog()
    ticket = Ticket(timeout_ns=1)
    line = line_with(ticket)
    backlog.add(line)
    backlog.join(ticket, 10)
    backlog.join(Ticket(timeout_ns=0), 10)
    assert backlog.first_ns() == 11


def test_a_line_that_leaves_the_backlog_is_gone() -> None:
    backlog = SequenceBacklog()
    line, other = SequenceLine(1), SequenceLine(2)
    backlog.add(line)
    backlog.add(other)
    backlog.discard(line)
    backlog.discard(line)
    assert (len(backlog), backlog.lines(), backlog.take_first(), backlog.take_first()) == (1, [other], other, None)


def test_a_slot_that_comes_and_goes_leaves_no_heap_behind() -> None:
    batcher = DirectBatcher(DirectOptions())
    oldest = Ticket()
    batcher.offer(oldest, 0, 0)
    for arrival in range(1, 1000):
        ticket = Ticket()
        ticket.arrival = arrival
        batcher.offer(ticket, 1, 0)
        batcher.withdraw(ticket, 1)
        assert batcher.entries <= 2 * 2 + 65
    batch = batcher.take(0)
    assert batch is not None
    assert list(batch.tickets) == [oldest]


def test_what_is_offered_already_is_no_news() -> None:
    instance = SequenceInstance(0, DirectBatcher(DirectOptions()))
    line = line_with(Ticket())
    assert not instance.offer(line, 0)  # it has no slot
    line.move_in(0, 0)
    assert [instance.offer(line, 0), instance.offer(line, 0)] == [True, False]
    line.executing = line.first()
    assert [instance.offer(line, 0), instance.offer(line, 0)] == [True, False]


def test_a_sequence_may_be_idle_for_a_second() -> None:
    assert SequenceOptions(slots=1).idle_ns_max == 1_000_000_000


@pytest.mark.parametrize(
    ("utilization", "slots", "ready"),
    [(0.0, 4, 0), (0.25, 4, 1), (0.26, 4, 2), (0.6, 5, 3), (0.5, 1, 1), (1.0, 4, 4), (1.0, 3, 3), (1e-9, 4, 1)],
)
def test_how_many_slots_are_enough(utilization: float, slots: int, ready: int) -> None:
    direct = StrategyDirect(minimum_slot_utilization=utilization)
    options = sequence_options(
        ModelConfig(name="m", max_batch_size=slots, sequence_batching=SequenceBatching(direct=direct))
    ).strategy
    assert isinstance(options, DirectOptions)
    assert options.ready_min == ready


# The dynamic batcher


def test_of_a_batch_any_tickets_may_be_given_back() -> None:
    core = DynamicCore(DynamicOptions(batch_size_max=4, preferred=frozenset({4})))
    tickets = [Ticket() for _ in range(3)]
    for ticket in tickets:
        core.submit(ticket, 0)
    core.add_instance(0, 0)
    [sent] = core.take_actions()
    assert isinstance(sent, Dispatch)
    core.reschedule(tickets[2], 1)
    core.reschedule(tickets[1], 1)
    core.done(0, 2)
    answered, again = core.take_actions()
    assert isinstance(answered, Respond)
    assert isinstance(again, Dispatch)
    assert (list(answered.tickets), list(again.batches[0])) == (tickets[:1], tickets[1:])
