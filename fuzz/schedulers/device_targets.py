"""The targets of queues that share devices: seeded histories of several queues against a naive ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fuzz.chance import Chance
from fuzz.schedulers.fair_trial import Share, unit_of
from fuzz.target import Target, Violation
from tpy.limits.tenants import DEVICE_DEBT_BATCHES, TENANT_ROW_NS_FIRST
from tpy.tenants import TenantRules
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.device_queue import DeviceQueue
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.fair_queue import FairQueue
from tpy_data.schedulers.core.tenants import Tenant, Tenants, tenants_of

_INVARIANT: Final = (
    "each queue of models that share devices is served in the order of its own ledger, where a tenant is also charged with its "
    "time on the other models since its last batch, up to DEVICE_DEBT_BATCHES times its part of that batch"
)
ELSEWHERE: Final = "a tenant is charged with time on another model"
BOUNDED: Final = "a tenant is charged with a part of the time on another model"


class _Ledger:
    """The shares of all tenants in each queue, and what waits there in order of arrival. Unlike a DeviceQueue, it charges time in
    all other queues at once."""

    def __init__(self, queues: int) -> None:
        self.shares: list[dict[Tenant, Share]] = [{} for _ in range(queues)]
        self.waiting: list[list[Ticket]] = [[] for _ in range(queues)]
        self.known: list[list[Tenant]] = [[] for _ in range(queues)]
        self.executing = [0] * queues
        self.virtual = [0] * queues
        self.row_ns = [0] * queues
        self.charges: dict[Ticket, int] = {}
        self.spare: dict[tuple[int, Tenant], int] = {}
        """Of each tenant in each queue: the time elsewhere that is still charged there before its next batch."""
        self.rules: list[str] = []

    def enter(self, number: int, ticket: Ticket) -> None:
        """The ticket comes, or comes back."""
        tenant = ticket.tenant
        if tenant not in self.known[number]:
            self.known[number].append(tenant)
        if not self.waiting[number] and not self.executing[number]:
            self.shares[number] = {}
            self.virtual[number] = 0
        if any(each.tenant is tenant for each in self.waiting[number]):
            return
        share = self.shares[number].get(tenant)
        if share is None:
            self.shares[number][tenant] = Share(self.known[number].index(tenant), self.virtual[number])
            self.spare[number, tenant] = 0
        else:
            share.start = max(self.virtual[number], share.start + share.owed * unit_of(tenant))
            share.owed = 0

    def order(self, number: int) -> list[Ticket]:
        """The queue, the next to serve first: the tenant with the earliest start, again and again."""
        lines: dict[Tenant, list[Ticket]] = {}
        for ticket in self.waiting[number]:
            lines.setdefault(ticket.tenant, []).append(ticket)
        shares = {tenant: self.shares[number][tenant] for tenant in lines}
        found: list[Ticket] = []
        while lines:
            tenant = min(lines, key=lambda each: (shares[each].start, shares[each].number))
            ticket = lines[tenant].pop(0)
            found.append(ticket)
            shares[tenant] = shares[tenant].charged(self.cost_of(number, ticket), unit_of(tenant))
            if not lines[tenant]:
                del lines[tenant]
        return found

    def take(self, number: int, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self.waiting[number].remove(ticket)
            self.executing[number] += 1
            share = self.shares[number][ticket.tenant]
            self.virtual[number] = max(self.virtual[number], share.start)
            self.charges[ticket] = self.cost_of(number, ticket)
            self.shares[number][ticket.tenant] = share.charged(self.charges[ticket], unit_of(ticket.tenant))

    def executed(self, number: int, tickets: Sequence[Ticket], took_ns: int) -> None:
        self.executing[number] -= len(tickets)
        rows = sum(ticket.batch_size for ticket in tickets)
        row_ns = max(1, took_ns // rows)
        self.row_ns[number] = (7 * self.row_ns[number] + row_ns) // 8 if self.row_ns[number] else row_ns
        for ticket in tickets:
            cost = took_ns * ticket.batch_size // rows
            self.shares[number][ticket.tenant].owed += cost - self.charges[ticket]
            self.charge_elsewhere(number, ticket.tenant, cost)
        for tenant in {ticket.tenant for ticket in tickets}:
            parts = [took_ns * ticket.batch_size // rows for ticket in tickets if ticket.tenant is tenant]
            self.spare[number, tenant] = DEVICE_DEBT_BATCHES * sum(parts)

    def charge_elsewhere(self, number: int, tenant: Tenant, cost: int) -> None:
        """The tenant had this time in this queue."""
        for other, shares in enumerate(self.shares):
            if other != number and tenant in shares:
                charged = min(cost, self.spare[other, tenant])
                self.spare[other, tenant] -= charged
                shares[tenant].start += charged * unit_of(tenant)
                self.rules.append(ELSEWHERE if charged == cost else BOUNDED)

    def returned(self, number: int, tickets: Sequence[Ticket]) -> None:
        self.executing[number] -= len(tickets)
        for ticket in tickets:
            self.shares[number][ticket.tenant].owed -= self.charges[ticket]

    def cost_of(self, number: int, ticket: Ticket) -> int:
        return (self.row_ns[number] or TENANT_ROW_NS_FIRST) * ticket.batch_size


class DeviceTrial:
    """One history."""

    def __init__(self, chance: Chance, make: type[FairQueue]) -> None:
        self.chance = chance
        weights = [chance.choice((1, 1, 2, 5)) for _ in range(chance.randint(1, 3))]
        self.tenants: Tenants = tenants_of([TenantRules(name=f"t{index}", weight=each) for index, each in enumerate(weights)])
        self.queues = [make(DynamicOptions(), self.tenants) for _ in range(chance.randint(1, 3))]
        self.ledger = _Ledger(len(self.queues))
        self.executing: list[tuple[int, list[Ticket]]] = []
        self.numbers: dict[Ticket, int] = {}
        self.steps: list[str] = []

    def step(self) -> None:
        """Any verb of any queue."""
        chance, number = self.chance, self.chance.randrange(len(self.queues))
        rule = chance.random()
        if rule < 0.45:
            self.push(number)
        elif rule < 0.7 and self.ledger.waiting[number]:
            self.take(number, chance.randint(1, 4))
        elif rule < 0.9 and self.executing:
            number, tickets = self.executing.pop(chance.randrange(len(self.executing)))
            took_ns = chance.choice((1, 1000, TENANT_ROW_NS_FIRST, 50 * TENANT_ROW_NS_FIRST))
            self.steps.append(f"executed {number} {self._names(tickets)} {took_ns}")
            self.ledger.executed(number, tickets, took_ns)
            self.queues[number].executed(tickets, took_ns)
            chance.taken.update(self.ledger.rules)
            self.ledger.rules.clear()
        elif rule < 0.95 and self.executing:
            number, tickets = self.executing.pop(chance.randrange(len(self.executing)))
            self.give_back(number, tickets)
        elif self.ledger.waiting[number]:
            ticket = chance.choice(self.ledger.waiting[number])
            self.steps.append(f"remove {number} {self._names([ticket])}")
            self.ledger.waiting[number].remove(ticket)
            self.queues[number].remove([ticket])
        self.check()

    def push(self, number: int) -> None:
        ticket = Ticket(batch_size=self.chance.choice((1, 1, 3)))
        ticket.tenant = self.chance.choice(list(self.tenants))
        ticket.size_bytes = 0
        self.numbers[ticket] = len(self.numbers)
        self.steps.append(f"push {number} {self._names([ticket])} of {ticket.tenant.name}, {ticket.batch_size} rows")
        self.ledger.enter(number, ticket)
        self.ledger.waiting[number].append(ticket)
        self.queues[number].push(ticket, self.queues[number].admit(ticket))

    def take(self, number: int, count: int) -> None:
        tickets = self.ledger.order(number)[:count]
        self.steps.append(f"take {number} {self._names(tickets)}")
        self.ledger.take(number, tickets)
        self.queues[number].take(tickets)
        self.executing.append((number, tickets))

    def give_back(self, number: int, tickets: list[Ticket]) -> None:
        self.steps.append(f"returned {number} {self._names(tickets)}")
        queue = self.queues[number]
        self.ledger.returned(number, tickets)
        queue.returned(tickets)
        for ticket in tickets:
            self.ledger.enter(number, ticket)
            self.ledger.waiting[number].append(ticket)
            self.ledger.waiting[number].sort(key=self.numbers.__getitem__)
            queue.push_back(ticket, queue.level_of(ticket), None)

    def check(self) -> None:
        """The queues are served in the order of the ledger."""
        for number, queue in enumerate(self.queues):
            expected, actual = self.ledger.order(number), list(queue.in_order())
            if expected != actual:
                history = "\n".join(f"  {step}" for step in self.steps)
                text = f"queue {number} should be {self._names(expected)}, is {self._names(actual)}"
                raise Violation(f"{text}\n{history}")

    def _names(self, tickets: Sequence[Ticket]) -> str:
        return " ".join(f"#{self.numbers[ticket]}" for ticket in tickets)


def _run(chance: Chance, make: type[FairQueue]) -> int:
    trial = DeviceTrial(chance, make)
    steps = 0
    for _ in chance.rounds((40, 60, 80)):
        trial.step()
        steps += 1
    return steps


DEVICES = Target(
    name="scheduler_fair_devices",
    invariant=_INVARIANT,
    run=lambda chance: _run(chance, DeviceQueue),
    smoke_examples=80,
    rules=(ELSEWHERE, BOUNDED),
)
CANARY = Target(
    name="scheduler_fair_devices_canary",
    invariant="queues that share nothing are found out",
    run=lambda chance: _run(chance, FairQueue),
    smoke_examples=40,
    must_fail=True,
)
