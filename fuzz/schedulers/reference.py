"""ReferenceScheduler: what a scheduler core must decide, written for being right and nothing else.

Everything is one list that is sorted and filtered anew at every step. With the options' defaults (one row at a time, one level,
no policies) and `credit` it is the default scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tpy.config.model_config import TimeoutAction
from tpy.errors import Unavailable
from tpy.limits import (
    PREFETCHED_BATCHES_MAX,
    QUICK_BATCHES_MAX,
    QUICK_BATCHES_NS_MAX,
    QUICK_SHARE_NS_MIN,
    UNREPORTED_NS_MAX,
)
from tpy_data.schedulers.core.contract import Outcome, Phase, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, QueueRules
from tpy_data.schedulers.core.overlap import OverlapTerms


@dataclass(kw_only=True, eq=False, slots=True)
class Entry:
    """A ticket that has not ended. `ends_ns`: its end-to-end deadline. `expires_ns`: when its time in the queue is over."""

    ticket: Ticket
    arrival: int
    ready_ns: int
    level: int
    rules: QueueRules
    ends_ns: int | None
    expires_ns: int | None
    queue_ns: int = 0
    phase: Phase = Phase.QUEUED
    delayed: bool = False


@dataclass(slots=True)
class Given:
    """A batch of the only instance. What is known when it is over: when that was, how long the instance says that it took (0: it
    does not say), and how many waited then."""

    count: int
    began_ns: int = 0
    over_ns: int | None = None
    took_ns: int = 0
    waiting: int = 0


@dataclass(slots=True)
class Decisions:
    """The decisions of one verb. Only the orders that are promised are kept: refusals are a set."""

    dispatched: list[tuple[int, list[list[Ticket]]]] = field(default_factory=list)
    """Instance and batches."""
    responded: list[Ticket] = field(default_factory=list)
    refused: set[tuple[Ticket, Outcome]] = field(default_factory=set)
    revoking: set[int] = field(default_factory=set)
    retired: set[int] = field(default_factory=set)


NOTHING = Decisions()
"""The decisions of most verbs."""


class ReferenceScheduler:
    """The verbs of SchedulerCore; each returns nothing, `take_decisions` gives what was decided since the last call."""

    def __init__(self, options: DynamicOptions, *, credit: bool = False) -> None:
        self.options = options
        self.credit = credit
        self.lengths: dict[int, int] = {}  # how many batches an instance of a quick model may have, of the batches that stay
        self.last_ns: dict[int, int] = {}  # what the last batch of an instance took
        self.times_ns: dict[int, list[int]] = {}  # of the batches that it has executed since it held nothing
        self.held_since_ns: dict[int, int] = {}  # several batches that are not prefetched, and nobody asked for them
        self.able: set[int] = set()  # to prefetch
        self.credits: dict[int, int] = {}  # the number of batches that an instance may hold at any time
        self.slow: set[int] = set()  # whose last batch took long
        self.revoking: set[int] = set()
        self.entries: list[Entry] = []  # in order of arrival
        self.idle: list[int] = []  # the longest idle first
        self.running: dict[int, list[list[Entry]]] = {}  # batches, the oldest first
        self.leaving: set[int] = set()
        self.arrivals = 0
        self.given_back: set[Ticket] = set()
        self.history: list[Given] = []  # since the only instance is the only one
        self.halved = 0
        self.stopped = False
        self.decisions = Decisions()

    def take_decisions(self) -> Decisions:
        decisions, self.decisions = self.decisions, Decisions()
        return decisions

    def add_instance(self, instance: int, now_ns: int, *, prefetch: bool = False, credit: int = 1) -> None:
        self.refuse_what_is_over(now_ns)
        self.revoke_prefetched()
        self.idle.append(instance)
        self.lengths[instance] = 1
        self.credits[instance] = credit
        if prefetch:
            self.able.add(instance)
        self.history = []
        self.settle(now_ns)

    def remove_instance(self, instance: int, now_ns: int) -> None:
        self.refuse_what_is_over(now_ns)
        self.revoke_prefetched()
        self.revoke(instance)
        if instance in self.idle:
            self.idle.remove(instance)
        else:
            self.leaving.add(instance)
        del self.lengths[instance]
        self.last_ns.pop(instance, None)
        self.slow.discard(instance)
        self.history = []
        self.settle(now_ns)

    def revoke(self, instance: int) -> None:
        if len(self.running.get(instance, ())) > 1 and instance not in self.revoking:
            self.revoking.add(instance)
            self.held_since_ns.pop(instance, None)
            self.decisions.revoking.add(instance)

    def revoke_prefetched(self) -> None:
        for instance in self.running:
            if self.prefetches(instance):
                self.revoke(instance)

    def recall(self, now_ns: int) -> None:
        self.refuse_what_is_over(now_ns)
        for instance in self.running.keys() - self.leaving:
            self.revoke(instance)
        self.settle(now_ns)

    def retire_instance(self, instance: int, now_ns: int) -> None:
        self.remove_instance(instance, now_ns)
        self.decisions.retired.add(instance)

    def reschedule(self, ticket: Ticket, now_ns: int) -> None:
        self.settle(now_ns)
        if any(entry.ticket is ticket for entry in self.entries):
            self.given_back.add(ticket)

    def submit(self, ticket: Ticket, now_ns: int) -> None:
        self.refuse_what_is_over(now_ns)
        if self.stopped:
            self.settle(now_ns)
            raise Unavailable("Server is stopping, scheduler for model has stopped accepting new inference requests")
        levels = self.options.levels
        level = ticket.priority - 1 if 1 <= ticket.priority <= len(levels) else self.options.default_level
        rules = levels[level]
        may_override = rules.allow_timeout_override
        wait_ns = rules.default_timeout_ns
        if may_override and ticket.timeout_ns != 0 and ticket.timeout_ns < wait_ns:
            wait_ns = ticket.timeout_ns
        if ticket.deadline_ns is not None and ticket.deadline_ns <= now_ns:
            self.decisions.refused.add((ticket, Outcome.TIMED_OUT))
            self.settle(now_ns)
            return
        if 0 < rules.queue_size_max <= sum(entry.phase is Phase.QUEUED and entry.level == level for entry in self.entries):
            self.settle(now_ns)
            raise Unavailable("Exceeds maximum queue size")
        self.arrivals += 1
        self.entries.append(
            Entry(
                ticket=ticket,
                arrival=self.arrivals,
                ready_ns=now_ns,
                level=level,
                rules=rules,
                ends_ns=ticket.deadline_ns,
                expires_ns=now_ns + wait_ns if wait_ns > 0 else None,
                queue_ns=wait_ns,
            )
        )
        self.settle(now_ns, behind=True)

    def cancel(self, ticket: Ticket, now_ns: int) -> None:
        for entry in [entry for entry in self.entries if entry.ticket is ticket]:
            self.forget(entry)
        self.settle(now_ns)

    def forget(self, entry: Entry) -> None:
        """It has ended; if it is held behind another batch, that is not to be started."""
        self.entries.remove(entry)
        for instance, batches in self.running.items() if self.credit else ():
            if any(entry in batch for batch in batches[1:]):
                self.revoke(instance)

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        given = self.running[instance][: len(times_ns)]
        del self.running[instance][: len(times_ns)]
        held = len(self.running[instance])
        self.leave_or_idle(instance)
        if self.credit and instance in self.lengths:
            last_ns = [0, *(ns for ns in times_ns if ns)][-1]
            if last_ns > QUICK_BATCHES_NS_MAX and instance in self.able:
                self.slow.add(instance)
            elif last_ns > 0:
                self.slow.discard(instance)
            self.last_ns[instance] = last_ns or self.last_ns.get(instance, 0)
            times = self.times_ns[instance]
            times.extend(times_ns)
            if sum(times) > QUICK_BATCHES_NS_MAX:
                self.lengths[instance] = max(1, min(len(times) - 1, QUICK_BATCHES_MAX))
            elif held == 0 and sum(times) > 0:
                self.lengths[instance] = max(self.lengths[instance], min(2 * len(times), QUICK_BATCHES_MAX))
            if self.prefetches(instance):
                times.clear()
            self.watch(instance, now_ns)
        elif instance not in self.lengths:
            self.held_since_ns.pop(instance, None)
        self.refuse_what_is_over(now_ns)
        self.over([entry for batch in given for entry in batch], now_ns)
        self.refuse_when_stopped()
        if self.options.overlap is not None and self.is_only(instance) and not self.running:
            (batch,) = given
            if not self.history or self.history[-1].over_ns is not None:
                self.history.append(Given(len(batch)))  # it became the only one while it ran this
            last = self.history[-1]
            last.over_ns, last.took_ns, last.waiting = now_ns, times_ns[-1], len(self.in_queue())
        self.settle(now_ns, behind=True)

    def revoked(self, instance: int, now_ns: int, batches: int) -> None:
        self.revoking.discard(instance)
        self.refuse_what_is_over(now_ns)
        if batches:
            for batch in self.running[instance][-batches:]:
                for entry in batch:
                    entry.phase = Phase.QUEUED
            del self.running[instance][-batches:]
            self.leave_or_idle(instance)
        self.refuse_when_stopped()
        self.settle(now_ns)

    def leave_or_idle(self, instance: int) -> None:
        """Leave, or become idle, if nothing is held any more."""
        if self.running[instance]:
            return
        del self.running[instance]
        if instance in self.leaving:
            self.leaving.remove(instance)
        else:
            self.idle.append(instance)

    def watch(self, instance: int, now_ns: int) -> None:
        if len(self.running.get(instance, ())) < 2 or self.prefetches(instance):
            self.held_since_ns.pop(instance, None)
        else:
            self.held_since_ns.setdefault(instance, now_ns)

    def over(self, executed: list[Entry], now_ns: int) -> None:
        """These are executed, or were given back and arrive once more."""
        for entry in executed:
            given_back = entry.ticket in self.given_back and entry in self.entries
            self.given_back.discard(entry.ticket)
            entry.phase = Phase.QUEUED if given_back else Phase.EXECUTED
            if given_back:
                self.arrivals += 1
                entry.arrival, entry.ready_ns, entry.delayed = self.arrivals, now_ns, False
                entry.expires_ns = None if entry.queue_ns == 0 else now_ns + entry.queue_ns

    def advance(self, now_ns: int) -> None:
        self.settle(now_ns)

    def refuse_waiting(self, now_ns: int) -> None:
        self.refuse_what_is_over(now_ns)
        for entry in self.in_queue():
            self.refuse(entry, Outcome.NO_INSTANCE)
        self.settle(now_ns)

    def stop(self, now_ns: int) -> None:
        self.refuse_what_is_over(now_ns)
        self.stopped = True
        self.refuse_when_stopped()
        self.settle(now_ns)
        self.revoke_prefetched()

    def refuse_when_stopped(self) -> None:
        if self.stopped:
            for entry in self.in_queue():
                self.refuse(entry, Outcome.STOPPING)

    def in_queue(self) -> list[Entry]:
        """The waiting tickets, the next to serve first: by level, the unexpired before the delayed, by arrival or by expiry."""
        waiting = [entry for entry in self.entries if entry.phase is Phase.QUEUED]
        return sorted(waiting, key=lambda one: (one.level, one.delayed, one.expires_ns if one.delayed else 0, one.arrival))

    def next_deadline_ns(self) -> int | None:
        times = [entry.ends_ns for entry in self.entries]
        times += [entry.expires_ns for entry in self.entries if entry.phase is Phase.QUEUED and not entry.delayed]
        if self.free() is not None:
            times += [entry.ready_ns + self.options.queue_delay_ns_max for entry in self.entries if entry.phase is Phase.QUEUED]
        times += [since_ns + UNREPORTED_NS_MAX for since_ns in self.held_since_ns.values()]
        return min((time for time in times if time is not None), default=None)

    def settle(self, now_ns: int, *, behind: bool = False) -> None:
        """Draw every conclusion from how things are now; `behind`: an instance may get something behind what it holds."""
        self.refuse_what_is_over(now_ns)
        while (instance := self.free()) is not None:
            batches = self.batches_for(instance) if self.credit else self.batch_to_send(now_ns)
            if not batches:
                break
            if instance in self.idle:
                self.idle.remove(instance)
                self.times_ns[instance] = []
            self.give(instance, batches, now_ns)
        if behind and self.credit:
            for instance in self.running.keys() - self.leaving - self.revoking:
                if batches := self.batches_for(instance):
                    self.give(instance, batches, now_ns)
        for entry in list(self.entries):
            if entry.phase is Phase.EXECUTED:
                self.entries.remove(entry)
                self.decisions.responded.append(entry.ticket)
            elif self.options.preserve_ordering:
                break

    def free(self) -> int | None:
        """The instance that gets the next batch: the longest idle, or the longest busy one with credit left."""
        room = [
            instance
            for instance, batches in self.running.items()
            if not self.credit and len(batches) < self.credits[instance] and instance not in self.leaving | self.revoking
        ]
        return next(iter([*self.idle, *room]), None)

    def is_only(self, instance: int) -> bool:
        """Returns True if the instance is the only idle one, and is given one batch at a time."""
        return self.idle == [instance] and self.credits[instance] == 1

    def give(self, instance: int, batches: list[list[Entry]], now_ns: int) -> None:
        self.running.setdefault(instance, []).extend(batches)
        for batch in batches:
            for entry in batch:
                entry.phase = Phase.EXECUTING
        if self.credit:
            self.watch(instance, now_ns)
        self.decisions.dispatched.append((instance, [[entry.ticket for entry in batch] for batch in batches]))

    def refuse_what_is_over(self, now_ns: int) -> None:
        for entry in list(self.entries):
            waits = entry.phase is Phase.QUEUED
            expired = waits and entry.expires_ns is not None and entry.expires_ns <= now_ns
            if entry.ends_ns is not None and entry.ends_ns <= now_ns:
                self.refuse(entry, Outcome.TIMED_OUT)
            elif expired and entry.rules.timeout_action is TimeoutAction.DELAY:
                entry.delayed = True
            elif expired:
                self.refuse(entry, Outcome.TIMED_OUT)

        for instance, since_ns in list(self.held_since_ns.items()):
            if since_ns + UNREPORTED_NS_MAX <= now_ns:
                del self.held_since_ns[instance]
                self.revoke(instance)

    def refuse(self, entry: Entry, outcome: Outcome) -> None:
        self.forget(entry)
        self.decisions.refused.add((entry.ticket, outcome))

    def batches_for(self, instance: int) -> list[list[Entry]]:
        """The batches that this instance may get now, of the first entries of the queue."""
        queue = self.in_queue()
        held = len(self.running.get(instance, ()))
        if self.prefetches(instance):
            count = max(PREFETCHED_BATCHES_MAX - held, 0)
        else:
            last_ns = self.last_ns.get(instance, 0)
            quick_share = QUICK_SHARE_NS_MIN // last_ns if last_ns else 1
            share = max(math.ceil(len(queue) / self.members()), quick_share)
            count = 0 if held else min(share, self.lengths[instance])
        return [[entry] for entry in queue[:count]]

    def prefetched(self) -> int:
        """The number of requests held behind another batch."""
        return sum(entry in self.entries for batches in self.running.values() for batch in batches[1:] for entry in batch)

    def members(self) -> int:
        return len(set(self.idle) | (set(self.running) - self.leaving))

    def prefetches(self, instance: int) -> bool:
        """Returns True if it is slow, the only one that does not leave, and able to."""
        return self.members() == 1 and instance in self.slow

    def batch_to_send(self, now_ns: int) -> list[list[Entry]]:
        queue = self.in_queue()
        count = batch_to_send([entry.ticket for entry in queue], [entry.ready_ns for entry in queue], self.options, now_ns)
        if (
            self.options.overlap is not None
            and count > 0
            and self.is_only(self.idle[0] if self.idle else -1)
            and not self.running
        ):
            share = share_of(count, self.history, self.options.overlap)
            self.halved += share < count
            count = share
            self.history.append(Given(count, now_ns))
        return [queue[:count]] if count else []


def share_of(count: int, history: list[Given], terms: OverlapTerms) -> int:
    """The size of the batch after these out of this many, found by looking through all of them. All are over."""
    begin = 0
    share = count
    while begin < len(history):
        step = last_step(history, begin, terms)
        if step is None:
            return count
        large, after = step
        failed = failed_trial(history, large, after, terms)
        if failed is None:
            open_max = max(given.count + given.waiting for given in history[-2:])
            share = min(count, math.ceil(open_max / 2)) if open_max >= terms.requests_min else count
        else:
            since_ns = time_over(history[-1]) - time_over(history[failed])
            share = 1 if since_ns < history[after].began_ns - time_over(history[large]) else count
        # The last that is halved, or not after the trial, is the first that is looked at again.
        begin = (after if failed is None else failed) + terms.batches_max
    return share


def failed_trial(history: list[Given], large: int, after: int, terms: OverlapTerms) -> int | None:
    """The place of the batch with which it is seen that halving does not pay, after the gap between these two."""
    tried = [
        place
        for place in range(after, min(after + terms.batches_max, len(history)))
        if history[place].took_ns > 0 and history[place].count >= history[large].count / 4
    ][: terms.trial_batches]
    if len(tried) < terms.trial_batches:
        return None
    gap_ns = history[after].began_ns - time_over(history[large])
    more_ns = 2 * min(history[place].took_ns for place in tried) - history[large].took_ns
    return tried[-1] if more_ns >= gap_ns else None


def last_step(history: list[Given], begin: int, terms: OverlapTerms) -> tuple[int, int] | None:
    """The places of the large batches around the gap with which the steps from `begin` on are enough in a row."""
    steps = 0
    place = begin
    while place < len(history):
        large = history[place]
        if large.count < terms.requests_min or 2 * large.waiting >= large.count:
            place += 1
            continue
        latest_ns = time_over(large) + 4 * large.took_ns
        after = place + 1
        while after < len(history) and history[after].count < large.count / 2 and time_over(history[after]) <= latest_ns:
            after += 1
        if after == len(history):
            return None
        took_ns = [given.took_ns for given in history[place + 1 : after] if given.took_ns > 0]
        gap_ns = history[after].began_ns - time_over(large)
        is_step = (
            history[after].count >= large.count / 2 and gap_ns <= 4 * large.took_ns and took_ns and gap_ns > 2 * min(took_ns)
        )
        steps = steps + 1 if is_step else 0
        if steps == terms.convoys_min:
            return place, after
        place = after
    return None


def time_over(given: Given) -> int:
    assert given.over_ns is not None
    return given.over_ns


def batch_to_send(queue: list[Ticket], ready_ns: list[int], options: DynamicOptions, now_ns: int) -> int:
    """The number of first tickets of the queue that go together now; 0: wait for more. `ready_ns`: since when each waits."""
    if not queue:
        return 0
    preferred_max = max(options.preferred)
    rows = [sum(ticket.batch_size for ticket in queue[:count]) for count in range(len(queue) + 1)]
    fits = 1
    while fits < len(queue) and rows[fits + 1] <= options.batch_size_max and queue[fits].signature == queue[0].signature:
        fits += 1
    waited_ns = now_ns - min(ready_ns[:fits])
    delay_is_over = 0 < options.queue_delay_ns_max <= waited_ns
    preferred = [count for count in range(1, fits + 1) if rows[count] in options.preferred]
    # Without a preferred size, the first count after which the next entry would lead beyond all preferred sizes.
    short_of_excess = [count for count in range(1, fits + 1) if count < len(queue) and rows[count + 1] > preferred_max]
    if options.queue_delay_ns_max == 0:
        short_of_excess = []  # nothing is waited for, so nothing is left behind for it
    if (preferred or short_of_excess) and not delay_is_over:
        return preferred[-1] if preferred else short_of_excess[0]
    cannot_grow = fits < len(queue) or rows[fits] >= preferred_max
    return fits if cannot_grow or delay_is_over or options.queue_delay_ns_max == 0 else 0
