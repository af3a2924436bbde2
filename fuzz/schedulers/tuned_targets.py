"""The targets of the tuned core: seeded histories against a naive scheduler that asks a tuner, the twin of the core's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from fuzz.chance import Chance
from fuzz.schedulers.reference import Entry, ReferenceScheduler
from fuzz.schedulers.targets import RULES, random_options, run_trial
from fuzz.schedulers.trial import PREFETCHED, Trial
from fuzz.target import Target
from tpy_data.schedulers.core.batch_tuner import BatchTuner, TunerTerms
from tpy_data.schedulers.core.contract import SchedulerCore
from tpy_data.schedulers.core.cost_curve import CostCurve
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.overlap import OverlapTerms
from tpy_data.schedulers.core.tuned_cores import TunedDynamicCore, TunedForming, tuned_options

_INVARIANT: Final = (
    "a core asks its tuner whenever an instance could have a batch, tells it of all arrivals, batches and their times, sends "
    "as many requests as it says, and a held batch when its wait is over, which is never longer than the batch would take "
    "alone; all else is as without a tuner"
)
WAITED: Final = "a batch waits for company"
SHARED: Final = "a batch waits for company beside busy instances"
SPLIT: Final = "a part of what fits is sent"


class TwinReference(ReferenceScheduler):
    """The same scheduler; `tuner` says how long a batch is held, and how much of it goes."""

    def __init__(self, options: DynamicOptions, tuner: BatchTuner, taken: Counter[str]) -> None:
        super().__init__(options)
        self.tuner = tuner
        self.taken = taken
        self.arrivals_seen = 0

    def add_instance(self, instance: int, now_ns: int, *, prefetch: bool = False, credit: int = 1) -> None:
        self.tuner.forget_waits()
        super().add_instance(instance, now_ns, prefetch=prefetch, credit=credit)

    def remove_instance(self, instance: int, now_ns: int) -> None:
        self.tuner.forget_waits()
        super().remove_instance(instance, now_ns)

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        for batch, took_ns in zip(self.running[instance], times_ns, strict=False):
            self.tuner.ended(sum(entry.ticket.batch_size for entry in batch), took_ns, now_ns)
        super().done(instance, now_ns, times_ns)

    def settle(self, now_ns: int, *, behind: bool = False) -> None:
        for entry in sorted(self.entries, key=lambda each: each.arrival):
            if entry.arrival > self.arrivals_seen:
                self.tuner.arrived(entry.ticket.batch_size, now_ns)
        self.arrivals_seen = self.arrivals
        members = [*self.idle, *self.running]
        self.tuner.instances, self.tuner.others_idle = len(members) - len(self.leaving), len(self.idle) > 1
        self.tuner.all_stay = bool(members) and not self.leaving and all(self.credits[member] == 1 for member in members)
        self.tuner.may_wait = self.tuner.all_stay
        super().settle(now_ns, behind=behind)

    def give(self, instance: int, batches: list[list[Entry]], now_ns: int) -> None:
        super().give(instance, batches, now_ns)
        self.tuner.began(sum(entry.ticket.batch_size for entry in batches[0]), now_ns)

    def batch_to_send(self, now_ns: int) -> list[list[Entry]]:
        queue = self.in_queue()
        if not queue:
            return []
        rows_max, signature = self.options.batch_size_max, queue[0].ticket.signature
        fits = 1
        while fits < len(queue) and queue[fits].ticket.signature == signature and _rows(queue[: fits + 1]) <= rows_max:
            fits += 1
        rows, oldest_ns = _rows(queue[:fits]), min(entry.ready_ns for entry in queue[:fits])
        if fits == len(queue) and rows < rows_max and self.tuner.holds(rows, oldest_ns, now_ns):
            self.taken[SHARED if self.running else WAITED] += 1
            return []
        size = self.tuner.size(rows, oldest_ns, now_ns)
        count = max([1, *(each for each in range(1, fits + 1) if _rows(queue[:each]) <= size)])
        self.taken[SPLIT] += count < fits
        return [queue[:count]]

    def next_deadline_ns(self) -> int | None:
        times = [entry.ends_ns for entry in self.entries]
        times += [entry.expires_ns for entry in self.in_queue() if not entry.delayed]
        if self.free() is not None and self.in_queue():
            times.append(self.tuner.due_ns())
        return min((time for time in times if time is not None), default=None)


def _rows(entries: Sequence[Entry]) -> int:
    return sum(entry.ticket.batch_size for entry in entries)


class TunedTrial(Trial):
    """Looks at the bound of waits as well."""

    tuner: BatchTuner

    def _check_state(self) -> None:
        super()._check_state()
        due_ns = self.tuner.due_ns()
        waiting = self.reference.in_queue()
        if due_ns is None or not waiting or self.reference.free() is None:
            return
        bound_ns = self.tuner.curve.time_ns(self.options.batch_size_max)
        if due_ns > self.now_ns + bound_ns:
            raise self._violation(f"{waiting} are held until {due_ns}, a batch takes {bound_ns} at most and it is {self.now_ns}")


class DrowsyForming(TunedForming):
    """Wrong on purpose: it does not say when the wait is over."""

    def due_ns(self) -> int | None:
        return None


class DrowsyCore(TunedDynamicCore):
    """With that."""

    def __init__(self, options: DynamicOptions, tuner: BatchTuner) -> None:
        super().__init__(options, tuner)
        self._forming = DrowsyForming(options, None, tuner)


def _run(chance: Chance, make: type[TunedDynamicCore]) -> int:
    options = msgspec.structs.replace(tuned_options(random_options(chance)), overlap=None)
    terms = TunerTerms(
        windows_min=chance.choice((1, 2)),
        split_ns_min=0,
        gain_permille_min=chance.choice((-3000, 0, 50)),
        fit_batches=chance.choice((1, 3)),
        learn_ns_min=chance.choice((0, 10)),
        shared_gain_permille_min=chance.choice((-3000, 0, 300)),
    )
    target_ns = chance.choice((0, 0, 6, 20))
    tuner, twin = (BatchTuner(CostCurve(options.batch_size_max), target_ns, terms) for _ in range(2))
    core: SchedulerCore = make(options, tuner)
    trial = TunedTrial(core, options, credit=False, taken=chance.taken, reference=TwinReference(options, twin, chance.taken))
    trial.tuner = tuner
    for _ in range(chance.choice((0, 0, 1, 2))):
        trial.add_instance()
    # Instances that have always something to do, or as it comes.
    steps = msgspec.structs.replace(options, overlap=OverlapTerms() if chance.random() < 0.7 else None)
    return run_trial(chance, trial, steps)


TUNED = Target(
    name="scheduler_tuned",
    invariant=_INVARIANT,
    run=lambda chance: _run(chance, TunedDynamicCore),
    smoke_examples=120,
    rules=(*RULES, "recall", "revoked", "fail", PREFETCHED, WAITED, SHARED, SPLIT),
)
CANARY = Target(
    name="scheduler_tuned_canary",
    invariant="a core that sleeps through the end of a wait is found out",
    run=lambda chance: _run(chance, DrowsyCore),
    smoke_examples=60,
    must_fail=True,
)
