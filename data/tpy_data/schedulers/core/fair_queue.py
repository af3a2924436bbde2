"""FairQueue: tickets of several tenants that wait, in the order of start-time fair queueing.

A tenant's *start* is a time on a clock of the tenant, which goes on when its tickets are given to an instance: by what they cost,
divided by the tenant's weight. The tenant with the earliest start is served next. A tenant that begins to wait starts where the
others are, at the *virtual time*, unless it is ahead of them: what it did not ask for earlier is lost.

A ticket costs the time that an instance spends on it, which is known when its batch is over. Until then it costs what rows of the
model took before; the difference is *owed*, and charged with the tenant's next ticket. So the start of a tenant that waits never
falls, and an entry of the heap that is out of date is too early, never too late.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence

from tpy.limits.tenants import TENANT_ROW_NS_FIRST, TENANTS_MAX
from tpy.messages import LevelActivity, TenantActivity
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.lines import TenantLine
from tpy_data.schedulers.core.priority_queue import QueueLevel, insert_back, insert_delayed
from tpy_data.schedulers.core.tenants import Limit, Tenant, Tenants

Line = TenantLine[Ticket]
_Entry = tuple[int, int, Line]
_Begun = tuple[Iterator[Ticket], int, list[int]]


class FairQueue:
    """A queue as `PriorityQueue` is one, for the tickets of tenants. Within a tenant a ticket has the rank of one a level higher
    that came `Tenants.ageing_ns` later, so that nothing starves; a level's delayed tickets come after its unexpired ones.

    A level that has as many tickets as it may refuses a tenant that has its share of them, by weight, and takes those of others:
    at most twice as many are there then.
    """

    __slots__ = (
        "_arrivals",
        "_busy",
        "_default",
        "_executing",
        "_heap",
        "_is_bounded",
        "_lines",
        "_numbers",
        "_options",
        "_period",
        "_row_ns",
        "_tenants",
        "_virtual",
        "count",
    )
    reorders = True
    few_entries = 32
    """Up to this number all entries of the heap are looked at for a batch: those of some ten tenants, and outdated ones."""
    _by_tokens = False

    def __init__(self, options: DynamicOptions, tenants: Tenants) -> None:
        self._options = options
        self._tenants = tenants
        self._lines: dict[Tenant, Line] = {}
        self._numbers = 0
        self._heap: list[_Entry] = []
        self._default = options.default_level
        self._is_bounded = any(rules.queue_size_max for rules in options.levels)
        self._arrivals = 0
        self._virtual = 0
        self._busy = 0  # lines with something waiting
        self._executing = 0  # tickets that were taken and are not over
        self._period = 0  # it ends when nothing waits and nothing executes: then all start anew
        self._row_ns = 0  # what a row took, smoothed; 0: not known yet
        self.count = 0

    # The verbs of PriorityQueue

    def admit(self, ticket: Ticket) -> QueueLevel:
        """As `PriorityQueue.admit`. Raises TooManyRequests for a ticket beyond its tenant's share of the queue."""
        tenant = ticket.tenant
        line = self._lines.get(tenant)
        if line is None:
            line = self._new_line(tenant)
        ticket.line = line
        level = line.levels[0] if len(line.levels) == 1 else self.level_of(ticket)
        if tenant.shares_queues or self._is_bounded:
            self._check(ticket, line, level)
        return level

    def level_of(self, ticket: Ticket) -> QueueLevel:
        """The ticket's level in the line of its tenant."""
        levels = ticket.line.levels
        if len(levels) == 1:
            return levels[0]
        return levels[ticket.priority - 1 if 0 < ticket.priority <= len(levels) else self._default]

    def push(self, ticket: Ticket, level: QueueLevel) -> None:
        """Put the ticket behind the unexpired tickets of its level."""
        self._arrivals += 1
        ticket.arrival = self._arrivals
        level.waiting[ticket] = None
        line = ticket.line
        if not line.count:
            self._begin(line)
        line.count += 1
        line.bytes += ticket.size_bytes
        self.count += 1

    def push_back(self, ticket: Ticket, level: QueueLevel, expired_ns: int | None) -> None:
        """As `PriorityQueue.push_back`."""
        insert_back(level, ticket, expired_ns)
        line = ticket.line
        if not line.count:
            self._begin(line)
        line.count += 1
        line.bytes += ticket.size_bytes
        self.count += 1

    def remove(self, tickets: Sequence[Ticket]) -> None:
        """Take the tickets out, wherever they stand: they end."""
        for ticket in tickets:
            line = ticket.line
            level = line.levels[0] if len(line.levels) == 1 else self.level_of(ticket)
            if ticket in level.waiting:
                del level.waiting[ticket]
            else:
                del level.delayed[ticket]
            line.count -= 1
            line.bytes -= ticket.size_bytes
            if not line.count:
                self._busy -= 1
        self.count -= len(tickets)

    def take(self, tickets: Sequence[Ticket]) -> None:
        """Take the tickets out, to give them to an instance, and charge them."""
        self.remove(tickets)
        self._executing += len(tickets)
        row_cost, virtual, by_tokens = self._row_ns or TENANT_ROW_NS_FIRST, self._virtual, self._by_tokens
        for ticket in tickets:
            line = ticket.line
            start = line.start
            if start > virtual:
                virtual = start
            cost = ticket.charge = ticket.cost.tokens or 1 if by_tokens else row_cost * ticket.batch_size
            if line.owed:
                cost += line.owed
                line.owed = 0 if cost >= 0 else cost
                if cost <= 0:
                    continue
            line.start = start + cost * line.tenant.unit
        self._virtual = virtual

    def delay(self, ticket: Ticket, expired_ns: int) -> None:
        """As `PriorityQueue.delay`."""
        level = self.level_of(ticket)
        del level.waiting[ticket]
        insert_delayed(level, ticket, expired_ns)

    def in_order(self) -> Iterator[Ticket]:
        """All tickets, the next to serve first. The queue may not change meanwhile."""
        if self._busy > 1:
            return self._merged() if len(self._heap) > self.few_entries else self._merged_few()
        line = self._first()
        return iter(()) if line is None else self._in_line(line)

    def explain(self, now_ns: int) -> tuple[LevelActivity, ...]:
        """The tickets of each level, of all tenants, and how long the first of them have waited."""
        has_levels = len(self._options.levels) > 1
        return tuple(
            LevelActivity(
                priority=index + 1 if has_levels else 0,
                waiting=self._count_in(index),
                oldest_ns=max((_waited_ns(line.levels[index], now_ns) for line in self._lines.values()), default=0),
                size_max=rules.queue_size_max,
            )
            for index, rules in enumerate(self._options.levels)
        )

    def tenants(self, now_ns: int) -> tuple[TenantActivity, ...]:
        """The tenants that wait, the one with the earliest start first."""
        lines = sorted([line for line in self._lines.values() if line.count], key=lambda line: (line.start, line.number))
        weights = sum(line.tenant.weight for line in lines)
        return tuple(
            TenantActivity(
                name=line.tenant.name,
                waiting=line.count,
                oldest_ns=max(_waited_ns(level, now_ns) for level in line.levels),
                share=line.tenant.weight / weights,
            )
            for line in lines
        )

    def drain(self) -> list[Ticket]:
        """Take all tickets out, in order: they end."""
        tickets = list(self.in_order())
        self.remove(tickets)
        return tickets

    # What it has besides

    def _check(self, ticket: Ticket, line: Line, level: QueueLevel) -> None:
        """Raise TooManyRequests for a ticket beyond its tenant's share of the queue."""
        tenant, rules = line.tenant, line.tenant.rules
        if rules.queue_requests is not None and line.count >= rules.queue_requests:
            raise tenant.refuse(
                Limit.QUEUE_REQUESTS,
                f"has {line.count} requests in the queue of this model, its queue_requests is {rules.queue_requests}",
            )
        # A single one may be larger, or it could never be served.
        if rules.queue_bytes is not None and line.count and line.bytes + ticket.size_bytes > rules.queue_bytes:
            raise tenant.refuse(
                Limit.QUEUE_BYTES,
                f"has requests with {line.bytes} bytes in the queue of this model, and this one has {ticket.size_bytes}: its "
                f"queue_bytes is {rules.queue_bytes}",
            )
        size_max = self._options.levels[level.index].queue_size_max
        count = len(level.waiting) + len(level.delayed)
        share = self._tenants.share(tenant, size_max)
        if size_max > 0 and count >= share and self._count_in(level.index) >= size_max:
            raise tenant.refuse(
                Limit.QUEUE_SHARE,
                f"has {count} requests in the queue of this model, which is full: its share of {size_max} is {share}",
            )

    def _count_in(self, index: int) -> int:
        """The tickets of a level, of all tenants."""
        return sum([len(line.levels[index].waiting) + len(line.levels[index].delayed) for line in self._lines.values()])

    def executed(self, tickets: Sequence[Ticket], took_ns: int) -> None:
        """The batch of these tickets, which were taken, is over; it took so long, 0: nobody says."""
        count = len(tickets)
        self._executing -= count
        if took_ns <= 0:
            return
        if count == 1:
            ticket = tickets[0]
            rows = ticket.batch_size
            line = ticket.line
            line.tenant.instance_ns += took_ns
            line.owed += took_ns - ticket.charge
        else:
            rows = sum([ticket.batch_size for ticket in tickets])
            for ticket in tickets:
                line = ticket.line
                cost = took_ns * ticket.batch_size // rows
                line.tenant.instance_ns += cost
                line.owed += cost - ticket.charge
        row_ns = took_ns // rows or 1
        self._row_ns = row_ns if self._row_ns == 0 else (7 * self._row_ns + row_ns) >> 3

    def returned(self, tickets: Sequence[Ticket]) -> None:
        """Tickets that were taken come back, or would if they had not ended: no instance has spent time on them."""
        self._executing -= len(tickets)
        for ticket in tickets:
            ticket.line.owed -= ticket.charge

    def _start(self, line: Line) -> None:
        """Set the start of a tenant that begins to wait."""
        if not self.count and not self._executing:
            self._period += 1
            self._virtual = 0
            self._heap.clear()
        if line.period == self._period:
            line.start = max(self._virtual, line.start + line.owed * line.tenant.unit)
        else:
            line.period, line.start = self._period, self._virtual
        line.owed = 0

    def _begin(self, line: Line) -> None:
        """A tenant begins to wait."""
        self._start(line)
        self._busy += 1
        if len(self._heap) > 2 * len(self._lines) + 16:
            self._heap = [entry for entry in self._heap if entry[2].entry is entry and entry[2].count]
            heapq.heapify(self._heap)
        line.entry = (line.start, line.number, line)  # another one that it has there counts no more
        heapq.heappush(self._heap, line.entry)

    def _first(self) -> Line | None:
        """The line to serve next."""
        heap = self._heap
        while heap:
            entry = heap[0]
            line = entry[2]
            if line.entry is not entry or not line.count:
                heapq.heappop(heap)
            elif entry[0] != line.start and self._busy > 1:  # where only one waits, its entry may be out of date
                line.entry = (line.start, line.number, line)
                heapq.heapreplace(heap, line.entry)
            else:
                return line
        return None

    def _start_of(self, line: Line) -> int:
        """The start of a tenant that waits, brought up to now."""
        return line.start

    def _in_line(self, line: Line) -> Iterator[Ticket]:
        """The tickets of a tenant, the next to serve first."""
        levels = line.levels
        if len(levels) == 1:
            level = levels[0]
            return itertools.chain(level.waiting, level.delayed) if level.delayed else iter(level.waiting)
        ageing_ns = self._tenants.ageing_ns
        return heapq.merge(
            *[itertools.chain(level.waiting, level.delayed) for level in levels],
            key=lambda ticket: ticket.queued_ns + self.level_of(ticket).index * ageing_ns,
        )

    def _merged(self) -> Iterator[Ticket]:
        """The tickets of all tenants. Of the heap only as many entries are looked at as are needed: its smallest ones are found
        from the root, each behind its parent."""
        heap, row_cost = self._heap, self._row_ns or TENANT_ROW_NS_FIRST
        # By start and number of the line: a place in the heap, or a line that is begun, with what it owes.
        ahead: list[tuple[int, int, int, _Begun | None]] = [(heap[0][0], heap[0][1], 0, None)]
        while ahead:
            start, number, place, begun = ahead[0]
            if begun is None:
                line = heap[place][2]
                if line.entry is heap[place] and line.count:
                    begun = self._in_line(line), line.tenant.unit, [line.owed]
                    heapq.heapreplace(ahead, (self._start_of(line), number, place, begun))
                else:
                    heapq.heappop(ahead)
                for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
                    heapq.heappush(ahead, (heap[child][0], heap[child][1], child, None))
                continue
            tickets, unit, owed = begun
            ticket = next(tickets, None)
            if ticket is None:
                heapq.heappop(ahead)
                continue
            yield ticket
            cost = ticket.cost.tokens or 1 if self._by_tokens else row_cost * ticket.batch_size
            if owed[0]:
                cost += owed[0]
                owed[0] = min(0, cost)
            if cost > 0:
                heapq.heapreplace(ahead, (start + cost * unit, number, place, begun))

    def _merged_few(self) -> Iterator[Ticket]:
        """The same where looking at all entries costs less than looking for the smallest."""
        ahead: list[tuple[int, int, Iterator[Ticket], int, int]] = [
            (self._start_of(line), line.number, self._in_line(line), line.tenant.unit, line.owed)
            for entry in self._heap
            if (line := entry[2]).entry is entry and line.count
        ]
        heapq.heapify(ahead)
        by_tokens, row_cost = self._by_tokens, self._row_ns or TENANT_ROW_NS_FIRST
        while ahead:
            start, number, tickets, unit, owed = ahead[0]
            for ticket in tickets:
                yield ticket
                cost = owed + (ticket.cost.tokens or 1 if by_tokens else row_cost * ticket.batch_size)
                if cost > 0:
                    heapq.heapreplace(ahead, (start + cost * unit, number, tickets, unit, 0))
                    break
                owed = cost
            else:
                heapq.heappop(ahead)

    def _new_line(self, tenant: Tenant) -> Line:
        if len(self._lines) > 2 * TENANTS_MAX:  # of tenants that were in the file once
            self._lines = {each: line for each, line in self._lines.items() if line.count}
        self._numbers += 1
        line = self._lines[tenant] = Line(self._numbers, tenant, self._options)
        return line


def _waited_ns(level: QueueLevel, now_ns: int) -> int:
    """The longest time that one of the first tickets of a level has waited."""
    firsts = (*itertools.islice(level.delayed, 1), *itertools.islice(level.waiting, 1))
    return max((now_ns - ticket.queued_ns for ticket in firsts), default=0)


class FairTokenQueue(FairQueue):
    """The same for an engine, where a ticket costs the tokens that it asks room for: they are known before."""

    __slots__ = ()
    _by_tokens = True

    def executed(self, tickets: Sequence[Ticket], took_ns: int) -> None:
        """The engine has taken these tickets."""
        super().executed(tickets, 0)
        for ticket in tickets:
            ticket.tenant.tokens += ticket.cost.tokens
