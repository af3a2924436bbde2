"""Tenants on models that share one device by the rate limiter, in virtual time, from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tpy.tenants import TenantRules
from tpy.units import NS_PER_MS
from tpy_data.schedulers.core.contract import Dispatch, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.fair_cores import FairDynamicCore
from tpy_data.schedulers.core.rate_limiter import Demand, RateLimiterCore
from tpy_data.schedulers.core.tenants import Tenant, Tenants, tenants_of

_INSTANCE = 0


def fair_uses(chance: random.Random) -> list[tuple[int, ...]]:
    """The models, of two, that each of some tenants uses, so that equal shares can be had: the limiter gives each model half."""
    while True:
        uses = [chance.choice(((0,), (1,), (0, 1))) for _ in range(chance.randint(2, 6))]
        most = max(uses.count((0,)), uses.count((1,)))
        if (0, 1) in uses and 2 * most <= len(uses):
            return uses


class _Model:
    """A core, as the GatedDriver has it: with an instance while that may run."""

    def __init__(self, tenants: Tenants, rows_max: int) -> None:
        options = DynamicOptions(batch_size_max=rows_max, preferred=frozenset({rows_max}), shares_devices=True)
        self.core = FairDynamicCore(options, tenants)

    def submit(self, tenant: Tenant, now_ns: int) -> None:
        ticket = Ticket()
        ticket.tenant, ticket.size_bytes = tenant, 0
        self.core.submit(ticket, now_ns)

    def run(self, took_ns_of: dict[str, int], chance: random.Random, now_ns: int) -> tuple[int, list[Tenant]]:
        """The end of one batch, and whose requests it had."""
        self.core.add_instance(_INSTANCE, now_ns)
        [batch] = [batch for action in self.core.take_actions() if isinstance(action, Dispatch) for batch in action.batches]
        took_ns = sum(round(took_ns_of[ticket.tenant.name] * chance.uniform(0.5, 1.5)) for ticket in batch)
        now_ns += took_ns
        self.core.remove_instance(_INSTANCE, now_ns)
        self.core.done(_INSTANCE, now_ns, (took_ns,))
        self.core.take_actions()
        return now_ns, [ticket.tenant for ticket in batch]


def times_of(
    uses: Sequence[tuple[int, ...]], *, seed: int, runs: int, rows_max: int = 1, shares_devices: bool = True
) -> list[float]:
    """The time that each tenant had of the device. All always have requests waiting for the models that they use."""
    chance = random.Random(seed)
    tenants = tenants_of([TenantRules(name=f"t{number}") for number in range(len(uses))])
    tenants.is_rate_limited = shares_devices
    models = [_Model(tenants, rows_max) for _ in (0, 1)]
    limiter = RateLimiterCore()
    for number in range(len(models)):
        demand = Demand({("device", 0): 1})
        limiter.declare(number, [demand])
        limiter.add(number, _INSTANCE, demand)
        limiter.want(number)
    took_ns = chance.choice((1, 5)) * NS_PER_MS
    took_ns_of = {tenant.name: took_ns for tenant in tenants}
    for number, used in enumerate(uses):
        for model in used:
            for _ in range(rows_max + 1):
                models[model].submit(tenants.of(f"t{number}"), 0)
    now_ns = 0
    for _ in range(runs * len(uses)):
        [grant] = limiter.take_grants()
        model = models[int(str(grant.group))]
        now_ns, executed = model.run(took_ns_of, chance, now_ns)
        for tenant in executed:
            model.submit(tenant, now_ns)
        limiter.release(grant.group, _INSTANCE)
    return [float(tenants.of(f"t{number}").instance_ns) for number in range(len(uses))]


def best_times_of(uses: Sequence[tuple[int, ...]], *, seed: int, runs: int, rows_max: int = 1) -> list[float]:
    """The same for an oracle, with the same costs: models take turns, and each place of a batch goes to the tenant of the model
    that has had least of the device."""
    chance = random.Random(seed)
    took_ns = chance.choice((1, 5)) * NS_PER_MS
    times = [0.0] * len(uses)
    users = [[number for number, used in enumerate(uses) if model in used] for model in (0, 1)]
    for turn in range(runs * len(uses)):
        expected = list(times)
        batch: list[int] = []
        for _ in range(rows_max):
            tenant = min(users[turn % 2], key=expected.__getitem__)
            expected[tenant] += took_ns
            batch.append(tenant)
        for tenant in batch:
            times[tenant] += round(took_ns * chance.uniform(0.5, 1.5))
    return times
