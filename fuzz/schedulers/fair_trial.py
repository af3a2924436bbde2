"""The reference of the fair cores, which computes the order of the queue anew each time, and their trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from fuzz.chance import Chance
from fuzz.schedulers.reference import Decisions, Entry, ReferenceScheduler
from fuzz.schedulers.trial import NumberedTicket, Trial
from tpy.errors import TooManyRequests
from tpy.limits.tenants import TENANT_ROW_NS_FIRST, TENANT_WEIGHT_MAX
from tpy_data.schedulers.core.contract import Phase, SchedulerCore, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.tenants import Tenant, Tenants

SHARED = "tickets of several tenants wait"
"""Among the rules that a history takes."""


@dataclass(slots=True)
class Share:
    """The position of a tenant in this busy period. `number` counts tenants as the queue came to know them."""

    number: int
    start: int = 0
    owed: int = 0

    def charged(self, cost: int, unit: int) -> Share:
        """The share after a ticket of this cost."""
        cost += self.owed
        return Share(self.number, self.start + max(0, cost) * unit, min(0, cost))


def unit_of(tenant: Tenant) -> int:
    """Virtual time of a nanosecond."""
    return 1000 * TENANT_WEIGHT_MAX // tenant.weight


class FairReference(ReferenceScheduler):
    """The same scheduler, but for the order of the queue and who may enter it."""

    def __init__(self, options: DynamicOptions, tenants: Tenants, *, credit: bool) -> None:
        unbounded = tuple(msgspec.structs.replace(rules, queue_size_max=0) for rules in options.levels)
        super().__init__(msgspec.structs.replace(options, levels=unbounded), credit=credit)
        self.sizes_max = [rules.queue_size_max for rules in options.levels]
        self.tenants = tenants
        self.shares: dict[Tenant, Share] = {}
        self.virtual = 0
        self.executing = 0
        self.row_ns = 0
        self.charges: dict[Ticket, int] = {}
        self.queued_ns: dict[Ticket, int] = {}

    def submit(self, ticket: Ticket, now_ns: int) -> None:
        self.refuse_what_is_over(now_ns)
        if not self.stopped:
            self.shares.setdefault(ticket.tenant, Share(len(self.shares) + 1))
            refusal = self.refusal_of(ticket)
            if refusal:
                self.settle(now_ns)
                raise TooManyRequests(f"tenant '{ticket.tenant.name}' {refusal}, try again later")
            if ticket.deadline_ns is None or ticket.deadline_ns > now_ns:
                self.queued_ns[ticket] = now_ns
                self.enter(ticket)
        super().submit(ticket, now_ns)

    def refusal_of(self, ticket: Ticket) -> str:
        """The reason to refuse one more ticket; "" for none."""
        tenant, rules = ticket.tenant, ticket.tenant.rules
        waiting = [entry for entry in self.entries if entry.phase is Phase.QUEUED]
        ours = [entry for entry in waiting if entry.ticket.tenant is tenant]
        count, size = len(ours), sum(entry.ticket.size_bytes for entry in ours)
        if rules.queue_requests is not None and count >= rules.queue_requests:
            return f"has {count} requests in the queue of this model, its queue_requests is {rules.queue_requests}"
        if rules.queue_bytes is not None and count and size + ticket.size_bytes > rules.queue_bytes:
            return (
                f"has requests with {size} bytes in the queue of this model, and this one has {ticket.size_bytes}: its "
                f"queue_bytes is {rules.queue_bytes}"
            )
        level = ticket.priority - 1 if 1 <= ticket.priority <= len(self.sizes_max) else self.options.default_level
        size_max = self.sizes_max[level]
        share = max(1, size_max * tenant.weight // sum(each.weight for each in self.tenants))
        count = sum(entry.level == level for entry in ours)
        if 0 < size_max <= sum(entry.level == level for entry in waiting) and count >= share:
            return f"has {count} requests in the queue of this model, which is full: its share of {size_max} is {share}"
        return ""

    def enter(self, ticket: Ticket) -> None:
        """The ticket is about to wait."""
        waiting = [entry.ticket.tenant for entry in self.entries if entry.phase is Phase.QUEUED]
        if not waiting and self.executing == 0:
            self.virtual = 0
            self.shares = {tenant: Share(share.number) for tenant, share in self.shares.items()}
        share = self.shares[ticket.tenant]
        if ticket.tenant not in waiting:
            share.start = max(self.virtual, share.start + share.owed * unit_of(ticket.tenant))
            share.owed = 0

    def over(self, executed: list[Entry], now_ns: int) -> None:
        for entry in executed:
            if entry.ticket in self.given_back and entry in self.entries and not self.stopped:
                self.enter(entry.ticket)
            super().over([entry], now_ns)

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        for batch, took_ns in zip(self.running[instance], times_ns, strict=False):
            self.executing -= len(batch)
            if took_ns == 0:
                continue
            rows = sum(entry.ticket.batch_size for entry in batch)
            row_ns = max(1, took_ns // rows)
            self.row_ns = (7 * self.row_ns + row_ns) // 8 if self.row_ns else row_ns
            for entry in batch:
                cost = took_ns * entry.ticket.batch_size // rows
                self.shares[entry.ticket.tenant].owed += cost - self.charges[entry.ticket]
        super().done(instance, now_ns, times_ns)

    def revoked(self, instance: int, now_ns: int, batches: int) -> None:
        returned = [entry for batch in self.running.get(instance, [])[-batches:] for entry in batch] if batches else []
        self.executing -= len(returned)
        for entry in returned:
            self.shares[entry.ticket.tenant].owed -= self.charges[entry.ticket]
        self.refuse_what_is_over(now_ns)
        for entry in returned:
            if entry in self.entries and not self.stopped:
                self.enter(entry.ticket)
                entry.phase = Phase.QUEUED
        super().revoked(instance, now_ns, batches)

    def give(self, instance: int, batches: list[list[Entry]], now_ns: int) -> None:
        for batch in batches:
            for entry in batch:
                share, unit = self.shares[entry.ticket.tenant], unit_of(entry.ticket.tenant)
                self.virtual = max(self.virtual, share.start)
                self.charges[entry.ticket] = self.cost_of(entry.ticket)
                self.shares[entry.ticket.tenant] = share.charged(self.charges[entry.ticket], unit)
                self.executing += 1
        super().give(instance, batches, now_ns)

    def in_queue(self) -> list[Entry]:
        """The tenant with the earliest start first, again and again."""
        lines: dict[Tenant, list[Entry]] = {}
        for entry in super().in_queue():
            lines.setdefault(entry.ticket.tenant, []).append(entry)
        lines = {tenant: self.in_line(entries) for tenant, entries in lines.items()}
        shares = dict(self.shares)
        found: list[Entry] = []
        while lines:
            tenant = min(lines, key=lambda one: (shares[one].start, shares[one].number))
            entry = lines[tenant].pop(0)
            found.append(entry)
            shares[tenant] = shares[tenant].charged(self.cost_of(entry.ticket), unit_of(tenant))
            if not lines[tenant]:
                del lines[tenant]
        return found

    def in_line(self, entries: list[Entry]) -> list[Entry]:
        """The entries of a tenant, which are sorted by level: the first of a level that came earliest, if each level less were
        some time earlier."""
        levels = [[entry for entry in entries if entry.level == level] for level in range(len(self.sizes_max))]
        found: list[Entry] = []
        while any(levels):
            level = min(
                (level for level, line in enumerate(levels) if line),
                key=lambda one: self.queued_ns[levels[one][0].ticket] + one * self.tenants.ageing_ns,
            )
            found.append(levels[level].pop(0))
        return found

    def cost_of(self, ticket: Ticket) -> int:
        return (self.row_ns or TENANT_ROW_NS_FIRST) * ticket.batch_size


class FairTrial(Trial):
    """Tickets are of random tenants."""

    def __init__(
        self, core: SchedulerCore, options: DynamicOptions, tenants: Tenants, chance: Chance, *, credit: bool, taken: Counter[str]
    ) -> None:
        super().__init__(core, options, credit=credit, taken=taken, reference=FairReference(options, tenants, credit=credit))
        self.tenants = list(tenants)
        self.chance = chance

    def prepare(self, ticket: NumberedTicket) -> None:
        ticket.tenant = self.chance.choice(self.tenants)
        ticket.size_bytes = self.chance.choice((0, 1, 10, 100))
        self.steps.append((self.now_ns, ticket.tenant.name, (ticket, ticket.size_bytes)))

    def _check_decisions(self, expected: Decisions, actual: Decisions) -> None:
        """Within a batch there is no order."""
        for decisions in (expected, actual):
            for _, batches in decisions.dispatched:
                for batch in batches:
                    batch.sort(key=repr)
        if len({entry.ticket.tenant for entry in self.reference.entries if entry.phase is Phase.QUEUED}) > 1:
            self.taken[SHARED] += 1
        super()._check_decisions(expected, actual)
