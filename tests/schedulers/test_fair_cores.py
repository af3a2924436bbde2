"""The fair cores' rules, one by one, and the shares that come of them. Their decisions are compared with a naive scheduler by the
fuzz targets `scheduler_fair_*`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedulers.model_shares import best_times_of, jain, random_history, times_of
from tests.schedulers.tenant_shares import JAIN_MIN
from tpy.config.model_config import DynamicBatching, ModelConfig, SequenceBatching, StrategyDirect
from tpy.errors import TooManyRequests
from tpy.messages import TenantActivity
from tpy.tenants import OTHER, TenantRules, TenantsConfig
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_data.generation.core.cost import Cost
from tpy_data.schedulers.core import make_core
from tpy_data.schedulers.core.contract import Dispatch, SchedulerCore, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, QueueRules
from tpy_data.schedulers.core.fair_cores import FairDefaultCore, FairDynamicCore, FairEngineCore
from tpy_data.schedulers.core.sequence_core import SequenceCore
from tpy_data.schedulers.core.tenants import Limit, Tenant, Tenants, tenants_of


def equals(*names: str) -> Tenants:
    return tenants_of([TenantRules(name=name) for name in names])


def ticket_of(tenant: Tenant, *, rows: int = 1, size_bytes: int = 0, priority: int = 0) -> Ticket:
    ticket = Ticket(batch_size=rows, priority=priority)
    ticket.tenant = tenant
    ticket.size_bytes = size_bytes
    return ticket


def submit(core: SchedulerCore, tenant: Tenant, count: int = 1, now_ns: int = 0, *, rows: int = 1, priority: int = 0) -> None:
    for _ in range(count):
        core.submit(ticket_of(tenant, rows=rows, priority=priority), now_ns)


def dispatched(core: SchedulerCore) -> list[Sequence[Ticket]]:
    return [batch for action in core.take_actions() if isinstance(action, Dispatch) for batch in action.batches]


def serve(core: SchedulerCore, rounds: int, cost_ns: Callable[[Ticket], int] = lambda _: NS_PER_MS) -> list[str]:
    """The tenants of the requests that the only instance executes one by one."""
    names: list[str] = []
    now_ns = 0
    for _ in range(rounds):
        [batch] = dispatched(core)
        names += [ticket.tenant.name for ticket in batch]
        took_ns = sum(map(cost_ns, batch))
        now_ns += took_ns
        core.done(0, now_ns, (took_ns,))
    return names


def slow(core: SchedulerCore) -> SchedulerCore:
    """The core, with one instance that holds one batch at a time."""
    core.add_instance(0, 0)
    return core


@pytest.mark.parametrize("make", [FairDefaultCore, lambda tenants: FairDynamicCore(DynamicOptions(), tenants)])
def test_tenants_take_turns_however_much_waits_of_each(make: Callable[[Tenants], SchedulerCore]) -> None:
    tenants = equals("greedy", "polite")
    core = slow(make(tenants))
    submit(core, tenants.of("greedy"), 100)
    submit(core, tenants.of("polite"), 3)
    assert serve(core, 7) == ["greedy", "polite", "greedy", "polite", "greedy", "polite", "greedy"]


def test_shares_are_of_time_not_of_requests() -> None:
    tenants = equals("costly", "cheap")
    core = slow(FairDefaultCore(tenants))
    submit(core, tenants.of("costly"), 300)
    submit(core, tenants.of("cheap"), 300)
    names = Counter(serve(core, 220, lambda ticket: NS_PER_MS * (10 if ticket.tenant.name == "costly" else 1)))
    assert names["cheap"] == pytest.approx(10 * names["costly"], rel=0.06)
    assert tenants.of("costly").instance_ns == pytest.approx(tenants.of("cheap").instance_ns, rel=0.06)


def test_weights_divide_the_time() -> None:
    tenants = tenants_of([TenantRules(name="one"), TenantRules(name="three", weight=3)])
    core = slow(FairDefaultCore(tenants))
    submit(core, tenants.of("one"), 100)
    submit(core, tenants.of("three"), 100)
    assert Counter(serve(core, 100)) == {"one": 25, "three": 75}


def test_nobody_saves_up_time_that_was_not_asked_for() -> None:
    tenants = equals("steady", "late")
    core = slow(FairDefaultCore(tenants))
    submit(core, tenants.of("steady"), 100)
    serve(core, 50)
    submit(core, tenants.of("late"), 20)
    assert Counter(serve(core, 20)) == {"steady": 10, "late": 10}


def test_a_batch_holds_requests_of_several_tenants() -> None:
    tenants = equals("greedy", "polite")
    core = slow(FairDynamicCore(DynamicOptions(batch_size_max=4, preferred=frozenset({4})), tenants))
    submit(core, tenants.of("greedy"), 9)
    submit(core, tenants.of("polite"), 2)
    assert Counter(serve(core, 2)) == {"greedy": 3, "polite": 2}


def test_within_a_tenant_priorities_go_first_and_age() -> None:
    tenants = tenants_of([TenantRules(name="a")], ageing_s=1)
    core = slow(FairDynamicCore(DynamicOptions(levels=(QueueRules(), QueueRules()), default_level=1), tenants))
    submit(core, tenants.of("a"))
    late, urgent = ticket_of(tenants.of("a"), priority=2), ticket_of(tenants.of("a"), priority=1)
    core.submit(late, 0)
    core.submit(urgent, NS_PER_S - 1)
    later = ticket_of(tenants.of("a"), priority=1)
    core.submit(later, NS_PER_S + 1)
    order = []
    for now_ns in (2, 3, 4):
        dispatched(core)
        core.done(0, now_ns * NS_PER_S, (1,))
        order += [ticket for batch in dispatched(core) for ticket in batch]
    assert order == [urgent, late, later]


def test_the_share_of_a_full_queue_is_by_weight_and_names_itself() -> None:
    tenants = tenants_of([TenantRules(name="a", weight=2), TenantRules(name="b")])
    core = slow(FairDynamicCore(DynamicOptions(levels=(QueueRules(queue_size_max=8),)), tenants))
    a, b = tenants.of("a"), tenants.of("b")
    submit(core, a, 9)
    with pytest.raises(
        TooManyRequests, match="tenant 'a' has 8 requests in the queue of this model, which is full: its share of 8 is 4"
    ):
        submit(core, a)
    submit(core, b, 2)
    with pytest.raises(TooManyRequests, match=r"tenant 'b' has 2 requests .* its share of 8 is 2"):
        submit(core, b)
    assert (a.refused[Limit.QUEUE_SHARE], b.refused[Limit.QUEUE_SHARE], a.waiting, b.waiting) == (1, 1, 8, 2)


def test_a_tenant_has_so_many_requests_and_bytes_in_a_queue() -> None:
    tenants = tenants_of([TenantRules(name="a", queue_requests=2), TenantRules(name="b", queue_bytes=100)])
    core = slow(FairDefaultCore(tenants))
    submit(core, tenants.of("a"), 3)
    with pytest.raises(TooManyRequests, match="tenant 'a' has 2 requests in the queue of this model, its queue_requests is 2"):
        submit(core, tenants.of("a"))
    core.submit(ticket_of(tenants.of("b"), size_bytes=1000), 0)
    with pytest.raises(TooManyRequests, match=r"has requests with 1000 bytes .* this one has 1: its queue_bytes is 100"):
        core.submit(ticket_of(tenants.of("b"), size_bytes=1), 0)


def test_an_explanation_has_the_tenants_that_wait() -> None:
    tenants = tenants_of([TenantRules(name="a", weight=3), TenantRules(name="b"), TenantRules(name="idle")])
    core = slow(FairDefaultCore(tenants))
    submit(core, tenants.of("b"), 3, now_ns=5)
    submit(core, tenants.of("a"), 2, now_ns=8)
    activity = core.explain(10)
    assert activity.tenants == (
        TenantActivity(name="a", waiting=2, oldest_ns=2, share=0.75),
        TenantActivity(name="b", waiting=2, oldest_ns=5, share=0.25),
    )
    assert activity.waiting == 4


def test_engines_are_shared_by_tokens() -> None:
    tenants = equals("long", "short")
    core = FairEngineCore(DynamicOptions(), tenants)
    core.add_instance(0, 0, credit=1)
    for name, tokens in (("long", 300), ("short", 100)):
        for _ in range(20):
            ticket = ticket_of(tenants.of(name))
            ticket.cost = Cost(1, tokens)
            core.submit(ticket, 0)
    for now_ns in range(16):
        [[ticket]] = dispatched(core)
        core.done(0, now_ns)
        core.cancel(ticket, now_ns)
    assert (tenants.of("long").tokens, tenants.of("short").tokens) == (1200, 1200)


def test_what_an_engine_that_fails_did_not_take_is_not_charged() -> None:
    tenants = equals("first", "second")
    core = FairEngineCore(DynamicOptions(), tenants)
    core.add_instance(0, 0, credit=1)
    for name in ("first", "second"):
        ticket = ticket_of(tenants.of(name))
        ticket.cost = Cost(1, 100)
        core.submit(ticket, 0)
    [[given]] = dispatched(core)
    core.remove_instance(0, 1)
    core.revoked(0, 1, 1)
    assert tenants.of("first").waiting == 1
    core.add_instance(1, 2, credit=2)
    assert [batch[0].tenant.name for batch in dispatched(core)] == ["first", "second"]
    core.done(1, 3, (0,))
    assert (tenants.of("first").tokens, tenants.of("second").tokens, given.tenant.name) == (100, 0, "first")


def test_sequence_models_are_not_shared_by_tenants() -> None:
    config = ModelConfig(name="m", sequence_batching=SequenceBatching(direct=StrategyDirect()))
    assert isinstance(make_core(config, tenants=equals("a")), SequenceCore)
    assert isinstance(make_core(ModelConfig(name="m"), tenants=equals("a")), FairDefaultCore)
    assert isinstance(make_core(ModelConfig(name="m", dynamic_batching=DynamicBatching()), tenants=equals("a")), FairDynamicCore)


def test_a_tenant_that_comes_back_to_the_file_has_a_line_again() -> None:
    tenants = equals("a", "b")
    core = slow(FairDefaultCore(tenants))
    submit(core, tenants.of("a"), 3)
    tenants.use(TenantsConfig(tenants=(TenantRules(name="b"),)))
    assert tenants.of("a").name == OTHER
    submit(core, tenants.of("b"))
    tenants.use(TenantsConfig(tenants=(TenantRules(name="a"), TenantRules(name="b"))))
    submit(core, tenants.of("a"))
    assert Counter(serve(core, 5)) == {"a": 4, "b": 1}


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_equal_tenants_get_equal_time(seed: int) -> None:
    assert jain(times_of(random_history(seed, requests_each=100))) > JAIN_MIN


def test_the_oracle_is_more_equal_still() -> None:
    histories = [random_history(seed, requests_each=100) for seed in range(8)]
    assert sum(jain(best_times_of(each)) for each in histories) > sum(jain(times_of(each)) for each in histories)


def test_a_preferred_size_that_the_order_makes_is_sent_at_once() -> None:
    tenants = equals("early", "late")
    options = DynamicOptions(batch_size_max=8, preferred=frozenset({4, 6}), queue_delay_ns_max=NS_PER_MS)
    core = FairDynamicCore(options, tenants)
    core.add_instance(0, 0)
    core.add_instance(1, 0)
    submit(core, tenants.of("early"), rows=6)
    assert len(dispatched(core)) == 1
    submit(core, tenants.of("early"), rows=1)
    assert dispatched(core) == []
    submit(core, tenants.of("late"), rows=4)  # with the other one there are 5, but this one goes first
    [batch] = dispatched(core)
    assert [ticket.batch_size for ticket in batch] == [4]


class Compared:
    """A signature that counts how often it is compared: once for each request that is looked at behind another."""

    def __init__(self) -> None:
        self.count = 0

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        self.count += 1
        return self is other


@pytest.mark.parametrize("preferred", [{64}, {32, 64}])
def test_an_arrival_is_not_a_reason_to_look_at_all_that_wait(preferred: set[int]) -> None:
    tenants = equals("a", "b")
    options = DynamicOptions(batch_size_max=64, preferred=frozenset(preferred), queue_delay_ns_max=NS_PER_S)
    core = slow(FairDynamicCore(options, tenants))
    signature = Compared()
    for number in range(31):
        ticket = ticket_of(tenants.of("ab"[number % 2]))
        ticket.signature = signature
        core.submit(ticket, 0)
    assert dispatched(core) == []
    assert signature.count < 2 * 31


@pytest.mark.parametrize("count", [2, 100])
def test_a_batch_has_one_request_of_each_tenant_in_turn(count: int) -> None:
    names = [f"t{number}" for number in range(count)]
    tenants = equals(*names)
    core = FairDynamicCore(DynamicOptions(batch_size_max=count, preferred=frozenset({count})), tenants)
    for name in names:
        submit(core, tenants.of(name), 3)
    core.add_instance(0, 0)
    [batch] = dispatched(core)
    assert [ticket.tenant.name for ticket in batch] == names
