"""Tenants on models that share devices by the rate limiter. The order of their queues is compared with a naive ledger by the fuzz
target `scheduler_fair_devices`; `make simulate-tenants` tries many more histories."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from tests.schedulers.device_shares import fair_uses, times_of
from tests.schedulers.model_shares import jain
from tests.schedulers.tenant_shares import JAIN_MIN
from tpy.config.model_config import DynamicBatching, InstanceGroup, ModelConfig, ModelParameter, RateLimiter, RateLimiterResource
from tpy.limits.tenants import DEVICE_DEBT_BATCHES, TENANT_ROW_NS_FIRST
from tpy.tenants import TenantRules
from tpy.units import NS_PER_MS
from tpy_data.schedulers.core import make_core
from tpy_data.schedulers.core.contract import Dispatch, Ticket
from tpy_data.schedulers.core.device_queue import DeviceQueue, fair_queue
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.fair_cores import FairDynamicCore
from tpy_data.schedulers.core.tenants import Tenants, tenants_of


@pytest.mark.parametrize("rows_max", [1, 4])
def test_equal_tenants_get_equal_time_of_a_device(rows_max: int) -> None:
    for seed in range(4):
        assert jain(times_of(fair_uses(random.Random(seed)), seed=seed, runs=80, rows_max=rows_max)) > JAIN_MIN


def test_a_tenant_with_two_models_gets_no_more_than_one_with_one_of_them() -> None:
    uses = [(0, 1), (0,)]
    assert jain(times_of(uses, seed=1, runs=100)) > JAIN_MIN
    assert jain(times_of(uses, seed=1, runs=100, shares_devices=False)) < 0.85


def equals(*names: str) -> Tenants:
    tenants = tenants_of([TenantRules(name=name) for name in names])
    tenants.is_rate_limited = True
    return tenants


def push(queue: DeviceQueue, tenants: Tenants, *names: str) -> list[Ticket]:
    tickets = []
    for name in names:
        ticket = Ticket()
        ticket.tenant, ticket.size_bytes = tenants.of(name), 0
        queue.push(ticket, queue.admit(ticket))
        tickets.append(ticket)
    return tickets


def order_of(queue: DeviceQueue) -> list[str]:
    return [ticket.tenant.name for ticket in queue.in_order()]


def execute(queue: DeviceQueue, tenants: Tenants, name: str, took_ns: int) -> None:
    taken = push(queue, tenants, name)
    queue.take(taken)
    queue.executed(taken, took_ns)


def test_time_on_one_model_counts_on_the_other() -> None:
    tenants = equals("a", "b")
    one, other = (DeviceQueue(DynamicOptions(), tenants) for _ in range(2))
    push(other, tenants, "a", "a", "a", "b", "b", "b", "b", "b", "b")
    taken = [next(other.in_order())]
    other.take(taken)
    other.executed(taken, TENANT_ROW_NS_FIRST)
    execute(one, tenants, "a", 3 * TENANT_ROW_NS_FIRST)
    assert order_of(other) == ["b", "b", "b", "b", "a", "b", "a", "b"]  # four rows: one here, three there


def test_what_a_tenant_had_before_it_came_is_not_held_against_it() -> None:
    tenants = equals("a", "b")
    one, other = (DeviceQueue(DynamicOptions(), tenants) for _ in range(2))
    for _ in range(50):
        execute(one, tenants, "a", TENANT_ROW_NS_FIRST)
    push(other, tenants, "a", "a", "a", "b", "b", "b")
    assert order_of(other) == ["a", "b", "a", "b", "a", "b"]


class Model:
    """A core with one instance, and the tenants of the requests that it began."""

    def __init__(self, tenants: Tenants) -> None:
        self.tenants = tenants
        self.core = FairDynamicCore(DynamicOptions(shares_devices=True), tenants)
        self.core.add_instance(0, 0)

    def submit(self, name: str, now_ns: int) -> None:
        ticket = Ticket()
        ticket.tenant, ticket.size_bytes = self.tenants.of(name), 0
        self.core.submit(ticket, now_ns)

    def end(self, now_ns: int, took_ns: int) -> list[str]:
        self.core.done(0, now_ns, (took_ns,))
        return self.begun()

    def begun(self) -> list[str]:
        batches = [batch for action in self.core.take_actions() if isinstance(action, Dispatch) for batch in action.batches]
        return [ticket.tenant.name for batch in batches for ticket in batch]


def test_a_new_tenant_does_not_wait_for_what_others_had_of_a_slower_model() -> None:
    tenants = equals("x", "y", "z")
    slow, quick = Model(tenants), Model(tenants)
    now_ns = 0
    for _ in range(3):
        slow.submit("x", now_ns)
        quick.submit("y", now_ns)

    def run_both() -> list[str]:
        nonlocal now_ns
        now_ns += 100 * NS_PER_MS
        slow.submit("x", now_ns)
        slow.end(now_ns, 100 * NS_PER_MS)
        now_ns += 10 * NS_PER_MS
        quick.submit("y", now_ns)
        return quick.end(now_ns, 10 * NS_PER_MS)

    for _ in range(500):
        run_both()
    quick.submit("z", now_ns)
    assert "z" in [*run_both(), *run_both()]


def test_a_tenant_that_waited_elsewhere_makes_up_for_nothing() -> None:
    tenants = equals("x", "y")
    stuck, model = Model(tenants), Model(tenants)
    stuck.core.remove_instance(0, 0)
    stuck.submit("y", 0)
    now_ns = 0
    for number in range(500):
        model.submit("x", now_ns)
        now_ns += 100 * NS_PER_MS
        if number:
            model.end(now_ns, 100 * NS_PER_MS)
    begun: list[str] = []
    for _ in range(50):
        model.submit("x", now_ns)
        model.submit("y", now_ns)
        now_ns += 100 * NS_PER_MS
        begun += model.end(now_ns, 100 * NS_PER_MS)
    assert abs(begun.count("x") - begun.count("y")) <= 2


@pytest.mark.parametrize("others", [("one",), ("one", "two", "three")])
@pytest.mark.parametrize("elsewhere_ms", [1, 1000])
def test_a_tenant_is_passed_over_for_what_it_has_elsewhere_up_to_a_bound(elsewhere_ms: int, others: Sequence[str]) -> None:
    tenants = equals("both", *others)
    other, model = Model(tenants), Model(tenants)
    now_ns = 0
    for name in (*others, "both") * 2:
        model.submit(name, now_ns)
    other.submit("both", now_ns)
    begun: list[str] = []
    for _ in range(300):
        now_ns += elsewhere_ms * NS_PER_MS
        other.submit("both", now_ns)
        other.end(now_ns, elsewhere_ms * NS_PER_MS)
        now_ns += 10 * NS_PER_MS
        for name in ("both", *others):
            model.submit(name, now_ns)
        begun += model.end(now_ns, 10 * NS_PER_MS)
    gaps = [len(list(run)) for is_passed_over, run in itertools.groupby(begun, "both".__ne__) if is_passed_over]
    longest = 1 if elsewhere_ms == 1 else DEVICE_DEBT_BATCHES + 1
    assert longest * len(others) <= max(gaps[2:-1]) <= (longest + 1) * len(others)


def config_of(*, resources: int, dynamic: bool = True, **parameters: str) -> ModelConfig:
    needed = tuple(RateLimiterResource(name="memory", count=1) for _ in range(resources))
    return ModelConfig(
        name="m",
        max_batch_size=8,
        dynamic_batching=DynamicBatching() if dynamic else None,
        instance_group=(InstanceGroup(rate_limiter=RateLimiter(resources=needed)),),
        parameters={name: ModelParameter(string_value=value) for name, value in parameters.items()},
    )


@pytest.mark.parametrize("is_rate_limited", [True, False])
@pytest.mark.parametrize("resources", [1, 0])
def test_only_models_that_the_rate_limiter_holds_back_share(is_rate_limited: bool, resources: int) -> None:
    tenants = equals("a")
    tenants.is_rate_limited = is_rate_limited
    for config in (
        config_of(resources=resources),
        config_of(resources=resources, dynamic=False),
        config_of(resources=resources, batching="auto"),
    ):
        core = make_core(config, tenants=tenants)
        ticket = Ticket()
        ticket.tenant, ticket.size_bytes = tenants.of("a"), 0
        core.submit(ticket, 0)
        core.add_instance(0, 0)
        before_ns = ticket.tenant.device_ns
        core.done(0, NS_PER_MS, (NS_PER_MS,))
        counted = NS_PER_MS if is_rate_limited and resources == 1 else 0
        assert ticket.tenant.device_ns - before_ns == counted, config


def test_the_queue_of_a_model() -> None:
    assert isinstance(fair_queue(DynamicOptions(shares_devices=True), equals("a")), DeviceQueue)
    assert not isinstance(fair_queue(DynamicOptions(), equals("a")), DeviceQueue)
