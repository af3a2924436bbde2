"""The targets of the cores that form batches by length: seeded histories against a naive scheduler that tries all choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from fuzz.chance import Chance
from fuzz.schedulers.fair_targets import random_tenants
from fuzz.schedulers.fair_trial import SHARED, FairReference, FairTrial
from fuzz.schedulers.reference import Entry, ReferenceScheduler
from fuzz.schedulers.targets import RULES, random_options, run_trial
from fuzz.schedulers.trial import PREFETCHED, NumberedTicket, Trial
from fuzz.target import Target
from tpy_data.schedulers.core.contract import SchedulerCore, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.length_cores import (
    LengthDynamicCore,
    LengthFairCore,
    LengthForming,
    length_options,
    window_of,
)
from tpy_data.schedulers.core.tenants import Tenants

_INVARIANT: Final = (
    "each batch holds the first request of the queue and as many rows as possible of about its length, without more padding than "
    "it may have; all else is as without lengths"
)
PASSED_OVER: Final = "a request is passed over"
_LENGTHS: Final = (0, 1, 2, 3, 3, 5, 9)


def padding_of(tickets: Sequence[Ticket]) -> tuple[int, int]:
    """The padding of a batch, and all of its elements with it."""
    area = max(ticket.length for ticket in tickets) * sum(ticket.batch_size for ticket in tickets)
    return area - sum(ticket.length * ticket.batch_size for ticket in tickets), area


def choices(tickets: Sequence[Ticket], rows_max: int, padding_ppm_max: int) -> Iterator[list[Ticket]]:
    """Every batch of the first ticket and those next to it by length that is allowed, in order of the longer ones in it."""
    first = tickets[0]
    longer = sorted(tickets[1:], key=lambda each: each.length)
    shorter = [each for each in reversed(longer) if each.length < first.length]
    shorter.sort(key=lambda each: (-each.length, tickets.index(each)))
    longer = [each for each in longer if each.length >= first.length]
    longer, shorter = (_without_misfits(each, rows_max - first.batch_size) for each in (longer, shorter))
    for above in range(len(longer) + 1):
        for below in range(len(shorter) + 1):
            batch = [first, *longer[:above], *shorter[:below]]
            padding, area = padding_of(batch)
            rows = sum(each.batch_size for each in batch)
            if len(batch) == 1 or (rows <= rows_max and 1_000_000 * padding <= padding_ppm_max * area):
                yield batch


def _without_misfits(tickets: Sequence[Ticket], rows_max: int) -> list[Ticket]:
    """The tickets without each that does not fit behind those before it."""
    kept: list[Ticket] = []
    for ticket in tickets:
        if sum(each.batch_size for each in [*kept, ticket]) <= rows_max:
            kept.append(ticket)
    return kept


def best_choice(tickets: Sequence[Ticket], rows_max: int, padding_ppm_max: int) -> list[Ticket]:
    """The first of these with the most rows, and among them the least padding."""
    allowed = choices(tickets, rows_max, padding_ppm_max)
    return max(allowed, key=lambda batch: (sum(each.batch_size for each in batch), -padding_of(batch)[0]))


class _ByLength(ReferenceScheduler):
    padding_ppm_max: int

    def batch_to_send(self, now_ns: int) -> list[list[Entry]]:
        queue = self.in_queue()
        if not queue:
            return []
        entries = {entry.ticket: entry for entry in queue[: window_of(self.options)]}
        alike = [ticket for ticket in entries if ticket.signature == queue[0].ticket.signature]
        chosen = best_choice(alike, self.options.batch_size_max, self.padding_ppm_max)
        return [[entries[ticket] for ticket in alike if ticket in chosen]]


class LengthReference(_ByLength):
    """The same scheduler, which tries all batches."""

    def __init__(self, options: DynamicOptions, padding_ppm_max: int) -> None:
        super().__init__(options)
        self.padding_ppm_max = padding_ppm_max


class FairLengthReference(_ByLength, FairReference):
    """With tenants."""

    def __init__(self, options: DynamicOptions, tenants: Tenants, padding_ppm_max: int) -> None:
        FairReference.__init__(self, options, tenants, credit=False)
        self.padding_ppm_max = padding_ppm_max


class LengthTrial(Trial):
    """Tickets have random lengths; looks at the padding of batches as well."""

    padding_ppm_max: int
    chance: Chance

    def prepare(self, ticket: NumberedTicket) -> None:
        super().prepare(ticket)
        ticket.length = self.chance.choice(_LENGTHS)
        self.steps.append((self.now_ns, "length", (ticket, ticket.length)))

    def _check_batch(self, tickets: list[Ticket]) -> None:
        super()._check_batch(tickets)
        padding, area = padding_of(tickets)
        if 1_000_000 * padding > self.padding_ppm_max * area:
            raise self._violation(f"{padding} of {area} elements in batch {tickets} are padding")
        arrivals = [ticket.arrival for ticket in tickets]
        self.taken[PASSED_OVER] += max(arrivals) - min(arrivals) >= len(arrivals)


class FairLengthTrial(LengthTrial, FairTrial):
    """The same with tickets of random tenants."""


class FullForming(LengthForming):
    """Wrong on purpose: it takes whatever comes first."""

    def ready_count(self, now_ns: int) -> int:
        self.tickets = self.tickets[:1] if len(self.tickets) < 3 else self.tickets[:2]
        return len(self.tickets)


class FullCore(LengthDynamicCore):
    """With that."""

    def __init__(self, options: DynamicOptions, padding_ppm_max: int) -> None:
        super().__init__(options, padding_ppm_max)
        self._forming = FullForming(options, None, padding_ppm_max)


def _run(chance: Chance, make: Callable[[DynamicOptions, int], SchedulerCore]) -> int:
    options, padding_ppm_max = length_options(random_options(chance)), _random_padding(chance)
    trial = LengthTrial(
        make(options, padding_ppm_max),
        options,
        credit=False,
        taken=chance.taken,
        reference=LengthReference(options, padding_ppm_max),
    )
    trial.padding_ppm_max, trial.chance = padding_ppm_max, chance
    return run_trial(chance, trial, options)


def _run_fair(chance: Chance) -> int:
    options, padding_ppm_max, tenants = length_options(random_options(chance)), _random_padding(chance), random_tenants(chance)
    trial = FairLengthTrial(
        LengthFairCore(options, padding_ppm_max, tenants), options, tenants, chance, credit=False, taken=chance.taken
    )
    trial.reference = FairLengthReference(options, tenants, padding_ppm_max)
    trial.padding_ppm_max = padding_ppm_max
    return run_trial(chance, trial, options)


def _random_padding(chance: Chance) -> int:
    return chance.choice((0, 100_000, 300_000, 500_000, 1_000_000))


LENGTHS = Target(
    name="scheduler_lengths",
    invariant=_INVARIANT,
    run=lambda chance: _run(chance, LengthDynamicCore),
    smoke_examples=100,
    rules=(*RULES, "recall", "revoked", "fail", PREFETCHED, PASSED_OVER),
)
FAIR = Target(
    name="scheduler_lengths_fair",
    invariant=_INVARIANT + "; tenants have their shares",
    run=_run_fair,
    smoke_examples=60,
    rules=(*RULES, "recall", "revoked", "fail", PREFETCHED, SHARED, PASSED_OVER),
)
CANARY = Target(
    name="scheduler_lengths_canary",
    invariant="a core that does not look at lengths is found out",
    run=lambda chance: _run(chance, FullCore),
    smoke_examples=60,
    must_fail=True,
)
