"""Tenants of equal weight that share the queue of one model, in virtual time, from a seed; beside an oracle, which knows what
requests cost on average, and forms batches by the time that each tenant has had. Both draw the same costs."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tpy.tenants import TenantRules
from tpy.units import NS_PER_MS
from tpy_data.schedulers.core.contract import Dispatch, SchedulerCore, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.fair_cores import FairDefaultCore, FairDynamicCore
from tpy_data.schedulers.core.tenants import Tenant, tenants_of


def jain(shares: Sequence[float]) -> float:
    """Jain's index: 1 for equal shares, 1/n where one has all."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


@dataclass(frozen=True)
class History:
    """A request of a tenant takes half to one and a half times its `costs_ns`. `waiting` of each wait at any time, `requests` are
    executed of all. Batches have `rows_max` requests."""

    seed: int
    costs_ns: tuple[int, ...]
    waiting: tuple[int, ...]
    instances: int
    rows_max: int
    requests: int


def random_history(seed: int, *, requests_each: int) -> History:
    """Two to six tenants, of which one may cost five times as much as another."""
    chance = random.Random(seed)
    tenants, instances, rows_max = chance.randint(2, 6), chance.randint(1, 3), chance.choice((1, 8))
    return History(
        seed=seed,
        costs_ns=tuple(chance.choice((1, 2, 5)) * NS_PER_MS for _ in range(tenants)),
        waiting=tuple(chance.choice((2, 5)) * rows_max * instances for _ in range(tenants)),
        instances=instances,
        rows_max=rows_max,
        requests=requests_each * tenants,
    )


class _Instances:
    """The batches that execute, by the time at which they are over, and the requests that are left. A batch's requests cost its
    tenants equal parts of its time."""

    def __init__(self, history: History) -> None:
        self.costs_ns = history.costs_ns
        self.left = history.requests
        self.now_ns = 0
        self.random = random.Random(history.seed).random
        self.running: list[tuple[int, int, list[int], list[Sequence[int]]]] = []

    def begin(self, instance: int, batches: list[Sequence[int]]) -> None:
        """The instance begins these, each the tenants of its requests."""
        chance, costs_ns = self.random, self.costs_ns
        took_ns = [sum([int(costs_ns[tenant] * (0.5 + chance())) for tenant in batch]) for batch in batches]
        heapq.heappush(self.running, (self.now_ns + sum(took_ns), instance, took_ns, batches))
        self.left -= sum(map(len, batches))

    def end(self) -> tuple[int, list[int], list[Sequence[int]]]:
        """The next instance that is over with its batches: their times and tenants."""
        self.now_ns, instance, took_ns, batches = heapq.heappop(self.running)
        return instance, took_ns, batches


def times_of(history: History) -> list[float]:
    """The time that each tenant got."""
    tenants = tenants_of([TenantRules(name=str(number)) for number in range(len(history.costs_ns))])
    core: SchedulerCore
    if history.rows_max > 1:
        options = DynamicOptions(batch_size_max=history.rows_max, preferred=frozenset({history.rows_max}))
        core = FairDynamicCore(options, tenants)
    else:
        core = FairDefaultCore(tenants)
    instances = _Instances(history)
    for instance in range(history.instances):
        core.add_instance(instance, 0)
    for number, waiting in enumerate(history.waiting):
        for _ in range(waiting):
            core.submit(_ticket(tenants.of(str(number))), 0)
    while True:
        for action in core.take_actions():
            if isinstance(action, Dispatch):
                instances.begin(action.instance, [[int(ticket.tenant.name) for ticket in batch] for batch in action.batches])
                for batch in action.batches:
                    for ticket in batch:
                        core.submit(_ticket(ticket.tenant), instances.now_ns)
        if instances.left <= 0:
            return [float(tenant.instance_ns) for tenant in tenants][:-1]  # but for `other`
        instance, took_ns, _ = instances.end()
        core.done(instance, instances.now_ns, took_ns)


def best_times_of(history: History) -> list[float]:
    """The same for the oracle: each place of a batch goes to the tenant that has had least, including what executes now."""
    instances = _Instances(history)
    times = [0.0] * len(history.costs_ns)
    expected = [0.0] * len(history.costs_ns)
    idle = list(range(history.instances))
    while True:
        for instance in idle:
            batch: list[int] = []
            for _ in range(history.rows_max):
                tenant = min(range(len(expected)), key=expected.__getitem__)
                expected[tenant] += history.costs_ns[tenant]
                batch.append(tenant)
            mean = sum(history.costs_ns[tenant] for tenant in batch) / len(batch)
            for tenant in batch:
                expected[tenant] += mean - history.costs_ns[tenant]
            instances.begin(instance, [batch])
        if instances.left <= 0:
            return times
        instance, [took_ns], [ended] = instances.end()
        mean = sum(history.costs_ns[tenant] for tenant in ended) / len(ended)
        for tenant in ended:
            times[tenant] += took_ns / len(ended)
            expected[tenant] += took_ns / len(ended) - mean
        idle = [instance]


def _ticket(tenant: Tenant) -> Ticket:
    ticket = Ticket()
    ticket.tenant, ticket.size_bytes = tenant, 0
    return ticket
