"""The targets of queues that share devices: seeded histories of several queues against one naive ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fuzz.chance import Chance
from fuzz.schedulers.fair_trial import Share, unit_of
from fuzz.target import Target, Violation
from tpy.limits.tenants import TENANT_ROW_NS_FIRST
from tpy.tenants import TenantRules
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.device_queue import DeviceQueue
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.fair_queue import FairQueue
from tpy_data.schedulers.core.tenants import Tenant, Tenants, tenants_of

_INVARIANT: Final = (
    "the queues of models that share devices serve the tenant first that has had the least of their time together, by weight, "
    "while it waited for one of them"
)
ELSEWHERE: Final = "a tenant begins to wait that waits elsewhere"
BEHIND: Final = "a tenant begins to wait that was ahead"


class _Ledger:
    """The shares of all tenants, and what waits in each queue in order of arrival."""

    def __init__(self, queues: int) -> None:
        self.shares: dict[Tenant, Share] = {}
        self.waiting: list[list[Ticket]] = [[] for _ in range(queues)]
        self.known: list[list[Tenant]] = [[] for _ in range(queues)]
        self.row_ns = [0] * queues
        self.charges: dict[Ticket, int] = {}
        self.virtual = 0

    def share_of(self, tenant: Tenant) -> Share:
        return self.shares.setdefault(tenant, Share(0))

    def is_waiting(self, tenant: Tenant) -> bool:
        return any(ticket.tenant is tenant for tickets in self.waiting for ticket in tickets)

    def enter(self, number: int, ticket: Ticket) -> None:
        """The ticket comes, or comes back."""
        share = self.share_of(ticket.tenant)
        if ticket.tenant not in self.known[number]:
            self.known[number].append(ticket.tenant)
        if not self.is_waiting(ticket.tenant):
            share.start = max(self.virtual, share.start + share.owed * unit_of(ticket.tenant))
            share.owed = 0

    def order(self, number: int) -> list[Ticket]:
        """The queue, the next to serve first: the tenant with the earliest start, again and again."""
        lines: dict[Tenant, list[Ticket]] = {}
        for ticket in self.waiting[number]:
            lines.setdefault(ticket.tenant, []).append(ticket)
        shares = {tenant: self.share_of(tenant) for tenant in lines}
        found: list[Ticket] = []
        while lines:
            tenant = min(lines, key=lambda each: (shares[each].start, self.known[number].index(each)))
            ticket = lines[tenant].pop(0)
            found.append(ticket)
            shares[tenant] = shares[tenant].charged(self.cost_of(number, ticket), unit_of(tenant))
            if not lines[tenant]:
                del lines[tenant]
        return found

    def take(self, number: int, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self.waiting[number].remove(ticket)
            share = self.share_of(ticket.tenant)
            self.virtual = max(self.virtual, share.start)
            self.charges[ticket] = self.cost_of(number, ticket)
            self.shares[ticket.tenant] = share.charged(self.charges[ticket], unit_of(ticket.tenant))

    def executed(self, number: int, tickets: Sequence[Ticket], took_ns: int) -> None:
        rows = sum(ticket.batch_size for ticket in tickets)
        row_ns = max(1, took_ns // rows)
        self.row_ns[number] = (7 * self.row_ns[number] + row_ns) // 8 if self.row_ns[number] else row_ns
        for ticket in tickets:
            self.share_of(ticket.tenant).owed += took_ns * ticket.batch_size // rows - self.charges[ticket]

    def returned(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self.share_of(ticket.tenant).owed -= self.charges[ticket]

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
        here = any(each.tenant is ticket.tenant for each in self.ledger.waiting[number])
        self.chance.taken[ELSEWHERE] += not here and self.ledger.is_waiting(ticket.tenant)
        self.chance.taken[BEHIND] += not here and self.ledger.share_of(ticket.tenant).start > self.ledger.virtual
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
        self.ledger.returned(tickets)
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
    rules=(ELSEWHERE, BEHIND),
)
CANARY = Target(
    name="scheduler_fair_devices_canary",
    invariant="queues that share nothing are found out",
    run=lambda chance: _run(chance, FairQueue),
    smoke_examples=40,
    must_fail=True,
)
