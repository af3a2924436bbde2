"""ReferenceScheduler: what a scheduler core must decide, written for being right and nothing else.

Everything is one list that is sorted and filtered anew at every step. With the options' defaults (one row at a time, one level,
no policies) and `runs` it is the default scheduler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tpy.config.model_config import TimeoutAction
from tpy.errors import Unavailable
from tpy.limits import RUN_HELD_NS_MAX, RUN_REQUESTS_MAX, RUN_SLICE_NS_MAX, STEADY_RUN_REQUESTS_MAX
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
    """What one verb decides. Only the orders that are promised are kept: refusals are a set."""

    dispatched: list[tuple[int, list[Ticket], bool]] = field(default_factory=list)
    """Instance, tickets, whether the run is steady."""
    responded: list[Ticket] = field(default_factory=list)
    refused: set[tuple[Ticket, Outcome]] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)
    retired: set[int] = field(default_factory=set)


NOTHING = Decisions()
"""What most verbs decide."""


class ReferenceScheduler:
    """The verbs of SchedulerCore; each returns nothing, `take_decisions` gives what was decided since the last call."""

    def __init__(self, options: DynamicOptions, *, runs: bool = False) -> None:
        self.options = options
        self.runs = runs
        self.run_lengths: dict[int, int] = {}
        self.runs_since_ns: dict[int, int] = {}  # runs of several tickets that were not broken up
        self.able: set[int] = set()  # to have steady runs
        self.slow: set[int] = set()  # whose last request took more than a time slice
        self.steady: set[int] = set()  # that have a steady run of several tickets that was not broken up
        self.entries: list[Entry] = []  # in order of arrival
        self.idle: list[int] = []  # the longest idle first
        self.running: dict[int, list[Entry]] = {}
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

    def add_instance(self, instance: int, now_ns: int, *, steady: bool = False) -> None:
        self.idle.append(instance)
        self.run_lengths[instance] = 1
        if steady:
            self.able.add(instance)
        self.history = []
        self.settle(now_ns)
        self.break_up_steady()

    def remove_instance(self, instance: int, now_ns: int) -> None:
        if instance in self.idle:
            self.idle.remove(instance)
        else:
            self.leaving.add(instance)
        self.history = []
        self.settle(now_ns)
        self.break_up_steady()

    def break_up_steady(self) -> None:
        self.decisions.broken |= self.steady
        self.steady = set()

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
        self.settle(now_ns)

    def cancel(self, ticket: Ticket, now_ns: int) -> None:
        self.entries = [entry for entry in self.entries if entry.ticket is not ticket]
        self.settle(now_ns)

    def completed(self, instance: int, now_ns: int, *, not_begun: int = 0, brief: bool = False, took_ns: int = 0) -> None:
        self.runs_since_ns.pop(instance, None)
        self.steady.discard(instance)
        self.slow.discard(instance)
        if took_ns > RUN_SLICE_NS_MAX:
            self.slow.add(instance)
        self.refuse_what_is_over(now_ns)
        given = self.running.pop(instance)
        begun = len(given) - not_begun
        self.over(given[:begun], now_ns)
        for entry in given[begun:]:
            entry.phase = Phase.QUEUED
        if not brief:
            self.run_lengths[instance] = max(begun - 1, 1)
        elif not_begun == 0:
            self.run_lengths[instance] = max(self.run_lengths[instance], min(2 * begun, RUN_REQUESTS_MAX))
        if instance in self.leaving:
            self.leaving.remove(instance)
        else:
            self.idle.append(instance)
        self.refuse_when_stopped()
        if self.options.overlap is not None and self.idle == [instance] and not self.running:
            if not self.history or self.history[-1].over_ns is not None:
                self.history.append(Given(len(given)))  # it became the only one while it ran this
            last = self.history[-1]
            last.over_ns, last.took_ns, last.waiting = now_ns, took_ns, len(self.in_queue())
        self.settle(now_ns)

    def broken_up(self, instance: int, now_ns: int, *, executed: int, not_begun: int) -> None:
        self.refuse_what_is_over(now_ns)
        given = self.running[instance]
        begun = len(given) - not_begun
        self.over(given[:executed], now_ns)
        for entry in given[begun:]:
            entry.phase = Phase.QUEUED
        self.running[instance] = given[executed:begun]
        if len(self.running[instance]) < 2:
            self.steady.discard(instance)
        self.refuse_when_stopped()
        self.settle(now_ns)

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
        self.break_up_steady()

    def refuse_when_stopped(self) -> None:
        if self.stopped:
            for entry in self.in_queue():
                self.refuse(entry, Outcome.STOPPING)

    def in_queue(self) -> list[Entry]:
        """Who waits, the next to serve first: by level, the unexpired before the delayed, by arrival or by expiry."""
        waiting = [entry for entry in self.entries if entry.phase is Phase.QUEUED]
        return sorted(waiting, key=lambda one: (one.level, one.delayed, one.expires_ns if one.delayed else 0, one.arrival))

    def next_deadline_ns(self) -> int | None:
        times = [entry.ends_ns for entry in self.entries]
        times += [entry.expires_ns for entry in self.entries if entry.phase is Phase.QUEUED and not entry.delayed]
        if self.idle:
            times += [entry.ready_ns + self.options.queue_delay_ns_max for entry in self.entries if entry.phase is Phase.QUEUED]
        times += [since_ns + RUN_HELD_NS_MAX for since_ns in self.runs_since_ns.values()]
        return min((time for time in times if time is not None), default=None)

    def settle(self, now_ns: int) -> None:
        """Draw every conclusion from how things are now."""
        self.refuse_what_is_over(now_ns)
        while self.idle and (batch := self.run_to_give() if self.runs else self.batch_to_send(now_ns)):
            instance = self.idle.pop(0)
            steady = self.runs and self.may_be_steady(instance) and len(batch) > 1
            if steady:
                self.steady.add(instance)
            elif self.runs and len(batch) > 1:
                self.runs_since_ns[instance] = now_ns
            self.running[instance] = batch
            for entry in batch:
                entry.phase = Phase.EXECUTING
            self.decisions.dispatched.append((instance, [entry.ticket for entry in batch], steady))
        for entry in list(self.entries):
            if entry.phase is Phase.EXECUTED:
                self.entries.remove(entry)
                self.decisions.responded.append(entry.ticket)
            elif self.options.preserve_ordering:
                break

    def refuse_what_is_over(self, now_ns: int) -> None:
        for instance, since_ns in list(self.runs_since_ns.items()):
            if since_ns + RUN_HELD_NS_MAX <= now_ns:
                del self.runs_since_ns[instance]
                self.decisions.broken.add(instance)
        for entry in list(self.entries):
            waits = entry.phase is Phase.QUEUED
            expired = waits and entry.expires_ns is not None and entry.expires_ns <= now_ns
            if entry.ends_ns is not None and entry.ends_ns <= now_ns:
                self.refuse(entry, Outcome.TIMED_OUT)
            elif expired and entry.rules.timeout_action is TimeoutAction.DELAY:
                entry.delayed = True
            elif expired:
                self.refuse(entry, Outcome.TIMED_OUT)

    def refuse(self, entry: Entry, outcome: Outcome) -> None:
        self.entries.remove(entry)
        self.decisions.refused.add((entry.ticket, outcome))

    def run_to_give(self) -> list[Entry]:
        """The first entries of the queue, as many as the next instance may have."""
        queue = self.in_queue()
        if self.may_be_steady(self.idle[0]) and len(queue) > 1:
            return queue[:STEADY_RUN_REQUESTS_MAX]
        share = math.ceil(len(queue) / self.members())
        return queue[: min(share, self.run_lengths[self.idle[0]])]

    def at_hand(self) -> int:
        """How many are given to an instance that it does not execute yet, as far as anybody was told."""
        return sum(entry in self.entries for instance in self.steady for entry in self.running[instance][1:])

    def members(self) -> int:
        return len(set(self.idle) | (set(self.running) - self.leaving))

    def may_be_steady(self, instance: int) -> bool:
        """Whether it is slow, the only one that does not leave, and able to."""
        alone = not (set(self.idle) | (set(self.running) - self.leaving)) - {instance}
        return alone and instance in self.slow & self.able

    def batch_to_send(self, now_ns: int) -> list[Entry]:
        queue = self.in_queue()
        count = batch_to_send([entry.ticket for entry in queue], [entry.ready_ns for entry in queue], self.options, now_ns)
        if self.options.overlap is not None and count > 0 and len(self.idle) == 1 and not self.running:
            share = share_of(count, self.history, self.options.overlap)
            self.halved += share < count
            count = share
            self.history.append(Given(count, now_ns))
        return queue[:count]


def share_of(count: int, history: list[Given], terms: OverlapTerms) -> int:
    """How many of so many the batch after these is to have, found by looking through all of them. All are over."""
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
        if steps == terms.steps_min:
            return place, after
        place = after
    return None


def time_over(given: Given) -> int:
    assert given.over_ns is not None
    return given.over_ns


def batch_to_send(queue: list[Ticket], ready_ns: list[int], options: DynamicOptions, now_ns: int) -> int:
    """How many of the first tickets of the queue go together now; 0: wait for company. `ready_ns`: since when each waits."""
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
