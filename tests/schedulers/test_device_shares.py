"""Tenants on models that share devices by the rate limiter. The order of their queues is compared with a naive ledger by the fuzz
target `scheduler_fair_devices`; `python -m tests.schedulers.device_shares` tries many more histories."""

from __future__ import annotations

import random

import pytest

from tests.schedulers.device_shares import JAIN_MIN, fair_uses, jain, times_of
from tpy.config.model_config import DynamicBatching, InstanceGroup, ModelConfig, ModelParameter, RateLimiter, RateLimiterResource
from tpy.limits.tenants import TENANT_ROW_NS_FIRST
from tpy.tenants import TenantRules
from tpy_data.schedulers.core import make_core
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.device_queue import DeviceLine, DeviceQueue, fair_queue
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
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


def test_time_on_one_model_counts_on_the_other() -> None:
    tenants = equals("a", "b")
    one, other = (DeviceQueue(DynamicOptions(), tenants) for _ in range(2))
    push(other, tenants, "b")  # waits, so its start is that of now
    taken = push(one, tenants, "a", "a")
    one.take(taken)
    one.executed(taken, 1000)
    push(other, tenants, "a", "b")
    assert order_of(other) == ["b", "b", "a"]


def test_a_tenant_that_comes_late_makes_up_for_nothing() -> None:
    tenants = equals("a", "b")
    one, other = (DeviceQueue(DynamicOptions(), tenants) for _ in range(2))
    for _ in range(50):
        taken = push(one, tenants, "a")
        one.take(taken)
        one.executed(taken, TENANT_ROW_NS_FIRST)
    push(other, tenants, "a", "a", "a", "b", "b", "b")
    assert order_of(other) == ["b", "a", "b", "a", "b", "a"]


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
        assert isinstance(ticket.line, DeviceLine) == (is_rate_limited and resources == 1), config


def test_the_queue_of_a_model() -> None:
    assert isinstance(fair_queue(DynamicOptions(shares_devices=True), equals("a")), DeviceQueue)
    assert not isinstance(fair_queue(DynamicOptions(), equals("a")), DeviceQueue)
