"""The targets of the fair cores: seeded histories of tickets of several tenants, against a naive scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz.chance import Chance
from fuzz.schedulers.fair_trial import SHARED, FairTrial
from fuzz.schedulers.targets import RULES, random_options, run_trial
from fuzz.schedulers.trial import HALVED, PREFETCHED
from fuzz.target import Target
from tpy.tenants import TenantRules
from tpy_data.schedulers.core.contract import SchedulerCore, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.fair_cores import FairDefaultCore, FairDynamicCore
from tpy_data.schedulers.core.fair_queue import FairQueue
from tpy_data.schedulers.core.tenants import Tenants, tenants_of

_INVARIANT = (
    "a queue of several tenants is served in the order of their shares of the instances' time, and refuses a tenant what goes "
    "beyond its share of the queue; all else is as without tenants"
)


def random_tenants(chance: Chance) -> Tenants:
    """One or two tenants, with limits of the queue."""
    return tenants_of(
        [
            TenantRules(
                name=name,
                weight=chance.choice((1, 1, 2, 5)),
                queue_requests=chance.choice((None, None, 1, 3)),
                queue_bytes=chance.choice((None, None, 5, 100)),
            )
            for name in "ab"[: chance.randint(1, 2)]
        ],
        ageing_s=chance.choice((1e-9, 3e-9, 1.0)),
    )


def _run(chance: Chance, make: Callable[[Tenants, DynamicOptions], SchedulerCore], *, credit: bool) -> int:
    options, tenants = DynamicOptions() if credit else random_options(chance), random_tenants(chance)
    trial = FairTrial(make(tenants, options), options, tenants, chance, credit=credit, taken=chance.taken)
    return run_trial(chance, trial, options)


class WideQueue(FairQueue):
    """Finds the smallest entries of its heap as if these were many."""

    few_entries = 0


class WideCore(FairDynamicCore):
    """With that queue."""

    def __init__(self, options: DynamicOptions, tenants: Tenants) -> None:
        super().__init__(options, tenants)
        self._queue = self._fair = WideQueue(options, tenants)


class CarelessQueue(FairQueue):
    """Wrong on purpose: it never learns what tickets have cost."""

    def executed(self, tickets: Sequence[Ticket], took_ns: int) -> None:
        super().executed(tickets, 0)


class CarelessCore(FairDynamicCore):
    """With that queue."""

    def __init__(self, options: DynamicOptions, tenants: Tenants) -> None:
        super().__init__(options, tenants)
        self._queue = self._fair = CarelessQueue(options, tenants)


DEFAULT = Target(
    name="scheduler_fair_default",
    invariant=_INVARIANT,
    run=lambda chance: _run(chance, lambda tenants, _: FairDefaultCore(tenants), credit=True),
    smoke_examples=60,
    rules=(*RULES, "recall", "revoked", "fail", PREFETCHED, SHARED),
)
DYNAMIC = Target(
    name="scheduler_fair_dynamic",
    invariant=_INVARIANT,
    run=lambda chance: _run(chance, lambda tenants, options: FairDynamicCore(options, tenants), credit=False),
    smoke_examples=60,
    rules=(*RULES, "recall", "revoked", "fail", HALVED, PREFETCHED, SHARED),
)
WIDE = Target(
    name="scheduler_fair_wide",
    invariant=_INVARIANT,
    run=lambda chance: _run(chance, lambda tenants, options: WideCore(options, tenants), credit=False),
    smoke_examples=60,
    rules=(*RULES, "recall", "revoked", "fail", HALVED, PREFETCHED, SHARED),
)
CANARY = Target(
    name="scheduler_fair_canary",
    invariant="a queue that never learns what its tickets have cost is found out",
    run=lambda chance: _run(chance, lambda tenants, options: CarelessCore(options, tenants), credit=False),
    smoke_examples=100,
    must_fail=True,
)
