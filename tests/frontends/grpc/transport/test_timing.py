"""Due times: deadlines of calls, keepalive, the life of a connection. Times are plain numbers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy.frontends.core.budget import Budget
from tpy.frontends.grpc.transport.core.timing import DeadlineQueue, Keepalive, KeepaliveStep, Lifetime, LifetimeStep, PingRules
from tpy.units import NS_PER_S

RULES = PingRules(
    keepalive_time_ns=100,
    keepalive_timeout_ns=20,
    permit_without_calls=False,
    pings_without_data_max=2,
    receive_interval_ns_min=10,
    strikes_max=2,
)


# Deadlines


@given(st.lists(st.tuples(st.sampled_from(("add", "discard", "advance")), st.integers(0, 30), st.integers(0, 30))))
def test_deadlines_against_a_list(steps: list[tuple[str, int, int]]) -> None:
    queue = DeadlineQueue()
    model: dict[int, int] = {}
    now_ns = 0
    for step, stream_id, amount in steps:
        if step == "add" and stream_id not in model:
            queue.add(stream_id, now_ns + amount)
            model[stream_id] = now_ns + amount
        elif step == "discard":
            queue.discard(stream_id)
            model.pop(stream_id, None)
        else:
            now_ns += amount
            due = {key for key, deadline_ns in model.items() if deadline_ns <= now_ns}
            assert set(queue.advance(now_ns)) == due
            for key in due:
                del model[key]
        assert len(queue) == len(model)
        assert queue.next_deadline_ns() == min(model.values(), default=None)


def test_ended_calls_leave_no_heap_behind() -> None:
    queue = DeadlineQueue()
    for stream_id in range(100_000):
        queue.add(stream_id, 10**12)
        queue.discard(stream_id)
    assert queue.entries < 200


# Keepalive


def advance(keepalive: Keepalive, now_ns: int, *, calls: bool = True, sent: int = 0) -> KeepaliveStep:
    return keepalive.advance(now_ns, calls=calls, frames_sent=sent)


def test_a_silent_peer_is_pinged_and_then_given_up() -> None:
    keepalive = Keepalive(RULES, 1000)
    assert keepalive.next_deadline_ns() == 1100
    assert advance(keepalive, 1099) is KeepaliveStep.NOTHING
    assert advance(keepalive, 1100) is KeepaliveStep.PING
    assert keepalive.next_deadline_ns() == 1120
    assert advance(keepalive, 1119) is KeepaliveStep.NOTHING
    assert advance(keepalive, 1120) is KeepaliveStep.CLOSE


def test_whatever_is_heard_is_a_sign_of_life() -> None:
    keepalive = Keepalive(RULES, 0)
    keepalive.received(50)
    assert keepalive.next_deadline_ns() == 150
    assert advance(keepalive, 150) is KeepaliveStep.PING
    keepalive.received(160)
    assert advance(keepalive, 170) is KeepaliveStep.NOTHING
    assert keepalive.next_deadline_ns() == 260


def test_without_calls_only_if_permitted() -> None:
    assert advance(Keepalive(RULES, 0), 100, calls=False) is KeepaliveStep.NOTHING
    permitted = msgspec.structs.replace(RULES, permit_without_calls=True)
    assert advance(Keepalive(permitted, 0), 100, calls=False) is KeepaliveStep.PING


@pytest.mark.parametrize("allowed", [1, 2, 0])
def test_only_so_many_pings_without_data(allowed: int) -> None:
    keepalive = Keepalive(msgspec.structs.replace(RULES, pings_without_data_max=allowed), 0)
    steps = []
    now_ns = 0
    for _ in range(5):
        now_ns = keepalive.next_deadline_ns()
        steps.append(advance(keepalive, now_ns, sent=7))
        keepalive.received(now_ns + 1)
    pings = allowed or 5
    assert steps == [KeepaliveStep.PING] * pings + [KeepaliveStep.NOTHING] * (5 - pings)
    assert advance(keepalive, now_ns + 200, sent=8) is KeepaliveStep.PING


def test_the_next_deadline_is_always_later() -> None:
    keepalive = Keepalive(RULES, 0)
    now_ns = 0
    for _ in range(10):
        advance(keepalive, keepalive.next_deadline_ns(), calls=False)
        assert keepalive.next_deadline_ns() > now_ns
        now_ns = keepalive.next_deadline_ns()


# The life of a connection


def life(age_ns: int | None = None, grace_ns: int | None = None) -> Lifetime:
    return Lifetime(now_ns=0, setup_ns=20, age_ns=age_ns, grace_ns=grace_ns, goaway_ns=5)


def test_the_set_up_takes_only_so_long() -> None:
    unsettled = life()
    assert unsettled.next_deadline_ns() == 20
    assert unsettled.advance(19) == []
    assert unsettled.advance(20) == [LifetimeStep.CLOSE_UNSETTLED]
    settled = life()
    settled.settled()
    settled.settled()
    assert settled.next_deadline_ns() is None


def test_old_age() -> None:
    lifetime = life(age_ns=100, grace_ns=30)
    lifetime.settled()
    assert lifetime.advance(100) == [LifetimeStep.BEGIN_GOAWAY]
    lifetime.goaway_begun(100)
    assert lifetime.next_deadline_ns() == 105
    assert lifetime.advance(105) == [LifetimeStep.FINISH_GOAWAY]
    assert lifetime.advance(129) == []
    assert lifetime.advance(130) == [LifetimeStep.CLOSE_OLD]
    assert lifetime.next_deadline_ns() is None


def test_a_drain_leaves_no_old_age() -> None:
    lifetime = life(age_ns=100)
    lifetime.settled()
    lifetime.goaway_begun(10)
    assert lifetime.advance(1000) == [LifetimeStep.FINISH_GOAWAY]
    assert lifetime.next_deadline_ns() is None


# Budgets


def test_a_budget_is_refilled_by_time_and_by_refunds() -> None:
    budget = Budget(3, 10, 0)
    assert [budget.spend(0) for _ in range(4)] == [True, True, True, False]
    budget.refund(1)
    assert [budget.spend(0) for _ in range(2)] == [True, False]
    assert [budget.spend(NS_PER_S // 10) for _ in range(2)] == [True, False]
    assert [budget.spend(10 * NS_PER_S) for _ in range(4)] == [True, True, True, False]
    budget.refund(100)
    assert [budget.spend(10 * NS_PER_S) for _ in range(4)] == [True, True, True, False]


def test_a_budget_earns_from_its_beginning_on_and_whole_tokens_only() -> None:
    budget = Budget(1, 10, 7 * NS_PER_S)
    assert [budget.spend(7 * NS_PER_S) for _ in range(2)] == [True, False]
    assert not budget.spend(7 * NS_PER_S + NS_PER_S // 10 - 1)
    assert budget.spend(7 * NS_PER_S + NS_PER_S // 10)
    assert not budget.spend(7 * NS_PER_S + NS_PER_S // 10)
