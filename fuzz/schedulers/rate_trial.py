"""RateTrial: the rate limiter's core and a naive ledger on one history, checked after every verb."""

from __future__ import annotations

from collections import Counter

from fuzz.chance import Chance
from fuzz.target import Violation
from tpy.errors import InvalidArgument
from tpy_data.schedulers.core.rate_limiter import Demand, RateLimiterCore, Resource, Supply

INVARIANT = (
    "an instance runs only when its group wants it, once at a time, and only while all its resources fit in what there is; "
    "every resource comes back when a run ends, its instance leaves or its group is forgotten; a free instance that could run "
    "is not left waiting unless somebody before it needs the same; while a model waits for one of priority p, another one of "
    "priority q begins at most ceil(p / q) + 1 runs on what that needs; demands that could never be met are refused and change "
    "nothing"
)

RESOURCES: tuple[Resource, ...] = (("A", 0), ("A", 1), ("B", 0), ("G", None))

Member = tuple[str, int]


class RateTrial:
    """One history. `running` is what was granted and not released."""

    def __init__(self, core: RateLimiterCore, supply: Supply | None, taken: Counter[str]) -> None:
        self.taken = taken
        self.core = core
        self.supply = supply
        self.demands: dict[Member, Demand] = {}
        self.declared: dict[str, list[Demand]] = {}
        self.wants: set[str] = set()
        self.running: set[Member] = set()
        self.leaving: set[Member] = set()
        self.overtaken: dict[Member, dict[Member, int]] = {}
        """For each that waits: how often each other one began to run on what it needs."""
        self.numbers = 0
        self.steps: list[str] = []

    # rules

    def declare(self, group: str, demands: list[Demand]) -> None:
        self.taken["declare"] += 1
        self.steps.append(f"declare {group} {demands}")
        before = self.declared.get(group)
        try:
            self.core.declare(group, demands)
        except InvalidArgument as error:
            if self._possible(group, demands):
                raise self._violation(f"refused: {error.message}") from error
            self.taken["refused"] += 1
            return
        if not self._possible(group, demands):
            raise self._violation(f"{demands} can never run and were accepted, after {before}")
        self.declared[group] = demands
        self._settle()

    def add(self, group: str, demand: Demand) -> None:
        self.taken["add"] += 1
        member = (group, self.numbers)
        self.numbers += 1
        self.steps.append(f"add {member} {demand}")
        self.core.add(group, member[1], demand)
        self.demands[member] = demand
        self._settle()

    def remove(self, member: Member) -> None:
        self.taken["remove"] += 1
        self.steps.append(f"remove {member}")
        self.core.remove(*member)
        if member in self.running:
            self.leaving.add(member)
        else:
            self._gone(member)
        self._settle()

    def want(self, group: str, wanted: bool) -> None:
        self.taken["want" if wanted else "unwant"] += 1
        self.steps.append(f"{'want' if wanted else 'unwant'} {group}")
        if wanted:
            self.core.want(group)
            self.wants.add(group)
        else:
            self.core.unwant(group)
            self.wants.discard(group)
            for member in list(self.overtaken):
                if member[0] == group:
                    del self.overtaken[member]
        self._settle()

    def release(self, member: Member, *, used: bool) -> None:
        self.taken["release"] += 1
        self.steps.append(f"release {member} used={used}")
        self.core.release(*member, used=used)
        self.running.discard(member)
        if not used:
            for times in self.overtaken.values():
                times[member] = max(0, times.get(member, 0) - 1)
        if member in self.leaving:
            self.leaving.discard(member)
            self._gone(member)
        self._settle()

    def forget(self, group: str) -> None:
        self.taken["forget"] += 1
        self.steps.append(f"forget {group}")
        self.core.forget(group)
        self.declared.pop(group, None)
        self.wants.discard(group)
        for member in [member for member in self.demands if member[0] == group]:
            self.running.discard(member)
            self.leaving.discard(member)
            self._gone(member)
        self._settle()

    def finish(self) -> None:
        """Everybody who wants runs in the end; when all is over nothing is held."""
        for _ in range(3 * len(self.demands) + 3):
            for member in sorted(self.running):
                self.want(member[0], False)
                self.release(member, used=True)
        if self.wants & {group for group, _ in self.demands}:
            raise self._violation(f"{self.wants} never ran")
        if self.core.used():
            raise self._violation(f"nothing runs, but {self.core.used()} is held")

    # checks

    def _settle(self) -> None:
        while grants := self.core.take_grants():
            for grant in grants:
                self._granted((str(grant.group), grant.instance))
        self._check()

    def _granted(self, member: Member) -> None:
        if member not in self.demands or member in self.leaving or member in self.running or member[0] not in self.wants:
            raise self._violation(f"{member} may run, but it is not there, runs already, leaves or is not wanted")
        self.steps.append(f"  {member} runs")
        self.running.add(member)
        self.taken["granted"] += 1
        for sibling in [other for other in self.overtaken if other[0] == member[0]]:
            del self.overtaken[sibling]  # its model has got an instance
        demand = self.demands[member]
        for other in self._waiting():
            needed = self.demands[other]
            if {r for r, n in needed.resources.items() if n} & {r for r, n in demand.resources.items() if n}:
                times = self.overtaken.setdefault(other, {})
                times[member] = times.get(member, 0) + 1
                if times[member] > -(-needed.priority // demand.priority) + 1:
                    raise self._violation(f"{other} {needed} was overtaken {times[member]} times by {member} {demand}")

    def _check_fits(self) -> None:
        used: dict[Resource, int] = {}
        for member in self.running:
            for resource, count in self.demands[member].resources.items():
                if count:
                    used[resource] = used.get(resource, 0) + count
        if used != self.core.used():
            raise self._violation(f"{used} is held, the core says {self.core.used()}")

    def _check(self) -> None:
        self._check_fits()
        used = self.core.used()
        able = []
        kept: set[Resource] = set()
        for member in self._waiting():
            if self._fits(self.demands[member], used):
                able.append(member)
            else:
                kept |= self._needs(member)
        # Who needs what somebody before it keeps waits, and keeps what it needs itself.
        while held_up := [member for member in able if self._needs(member) & kept]:
            kept = kept.union(*map(self._needs, held_up))
            able = [member for member in able if member not in held_up]
        if able:
            raise self._violation(f"{able} wait and could run")

    def _needs(self, member: Member) -> set[Resource]:
        return {resource for resource, count in self.demands[member].resources.items() if count}

    def _waiting(self) -> list[Member]:
        return [member for member in self.demands if member[0] in self.wants and member not in self.running]

    def _fits(self, demand: Demand, used: dict[Resource, int]) -> bool:
        return all(
            used.get(resource, 0) + count <= self._supply(resource) for resource, count in demand.resources.items() if count
        )

    def _supply(self, resource: Resource) -> int:
        if self.supply is not None:
            return self.supply.of(resource)
        return max((each.resources.get(resource, 0) for all_of in self.declared.values() for each in all_of), default=0)

    def _possible(self, group: str, demands: list[Demand]) -> bool:
        every = [each for name, all_of in self.declared.items() if name != group for each in all_of] + demands
        named = {resource for each in every for resource in each.resources}
        if any((name, None) in named for name, device in named if device is not None):
            return False
        return self.supply is None or all(
            self.supply.of(resource) >= count for each in demands for resource, count in each.resources.items()
        )

    def _gone(self, member: Member) -> None:
        del self.demands[member]
        self.overtaken.pop(member, None)
        for times in self.overtaken.values():
            times.pop(member, None)

    def _violation(self, text: str) -> Violation:
        return Violation(f"{text}\nsupply {self.supply}\n" + "\n".join(self.steps))


def random_demand(chance: Chance) -> Demand:
    """Up to three resources, small counts; seldom one that is somebody else's of the machine."""
    resources = {resource: chance.randrange(4) for resource in chance.sample(RESOURCES, chance.randrange(4))}
    if chance.random() < 0.03:
        resources["A", None] = 1
    return Demand(resources, chance.choice((1, 1, 2, 3)))


def run_rates(chance: Chance, core_of: type[RateLimiterCore] = RateLimiterCore) -> int:
    """A random history; returns its number of steps."""
    supply = None if chance.random() < 0.5 else Supply(counts={("A", None): 3, ("B", 0): 4, ("G", 1): 2, ("A", 1): 5})
    trial = RateTrial(core_of(supply), supply, chance.taken)
    groups = ("x", "y", "z")
    for _ in chance.rounds((50, 70, 90)):
        rule = chance.random()
        group = chance.choice(groups)
        if rule < 0.1 or group not in trial.declared:
            kept = [demand for member, demand in trial.demands.items() if member[0] == group]
            trial.declare(group, [*kept, *(random_demand(chance) for _ in range(chance.randint(1, 2)))])
        elif rule < 0.25 and trial.declared[group]:
            trial.add(group, chance.choice(trial.declared[group]))
        elif rule < 0.3 and trial.demands:
            member = chance.choice(sorted(trial.demands))
            if member not in trial.leaving:
                trial.remove(member)
        elif rule < 0.6:
            trial.want(group, chance.random() < 0.8)
        elif rule < 0.98 and trial.running:
            trial.release(chance.choice(sorted(trial.running)), used=chance.random() < 0.9)
        elif rule > 0.99:
            trial.forget(group)
    trial.finish()
    return len(trial.steps)
