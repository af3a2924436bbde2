"""RateLimiterCore: which instances, of all models together, may run now.

An instance runs while it holds its resources. It gets them on demand: a model (a *group* of instances) says that it wants one of
its instances, and when an instance's run is over it gives everything back. So an idle model holds nothing.

Who is next: among the free instances of all groups that want, the one with the lowest *score*. A run adds the instance's
priority to its score (priority 2 runs half as often as 1), which is Triton's execution count times priority, with two corrections
that keep anyone from starving:

* An instance that runs catches up with instances that wait for the same resources: it ends at most one of their runs behind them.
  Runs that it missed because it had nothing to run are not made up for.
* An instance whose resources are not free keeps the free part of them from all behind it. Instances that need other resources go
  on.

Bound: while a group waits that has a free instance of priority p, another group's instance of priority q begins at most
ceil(p / q) + 1 runs on resources that the first one needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import msgspec

from tpy.errors import InvalidArgument, invariant
from tpy_data.schedulers.core.contract import Resource


class Demand(msgspec.Struct, frozen=True):
    """The demand of an instance that runs: a count per resource. `priority` >= 1."""

    resources: Mapping[Resource, int] = {}
    priority: int = 1


class Supply(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's counts, by resource name and device (None: any device). For a resource of the machine the
    device says nothing. Empty: there is of each resource what the most demanding instance needs."""

    counts: Mapping[tuple[str, int | None], int] = {}

    def of(self, resource: Resource) -> int:
        """The amount of a resource; 0 for one that is not named."""
        name, device = resource
        if device is None:
            return max((count for (given, _), count in self.counts.items() if given == name), default=0)
        return max(self.counts.get((name, device), 0), self.counts.get((name, None), 0))


class GroupActivity(msgspec.Struct, frozen=True, kw_only=True):
    """The instances of a group: `free` ones hold nothing. `wants`: there is work for one of them."""

    free: int
    running: int
    wants: bool


class Grant(msgspec.Struct, frozen=True):
    """This instance of this group may run now, and holds its resources until `release`."""

    group: Hashable
    instance: int


class _Instance:
    """One instance. `running`: it holds its resources. `leaving`: it is forgotten when it gives them back."""

    __slots__ = ("demand", "group", "leaving", "number", "order", "running", "score")

    def __init__(self, group: _Group, number: int, demand: Demand, order: int) -> None:
        self.group = group
        self.number = number
        self.demand = demand
        self.score = 0
        self.order = order
        self.running = False
        self.leaving = False


class _Group:
    """The instances of one model version. `declared` are the demands of all instances that it has or will have."""

    __slots__ = ("declared", "instances", "key", "wants")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.declared: tuple[Demand, ...] = ()
        self.instances: dict[int, _Instance] = {}
        self.wants = False


class RateLimiterCore:
    """See the module. Grants are taken out after each verb, and must be performed. A verb costs as much as there are instances in
    groups that want."""

    __slots__ = ("_explicit", "_groups", "_orders", "_used")

    def __init__(self, supply: Supply | None = None) -> None:
        self._explicit = supply if supply is not None and supply.counts else None
        self._groups: dict[Hashable, _Group] = {}
        self._used: dict[Resource, int] = {}
        self._orders = 0

    # Members

    def declare(self, group: Hashable, demands: Iterable[Demand]) -> None:
        """The group will have instances with these demands; in place of what it declared before.

        Raises InvalidArgument, and nothing has changed, when one could never run beside the others.
        """
        demands = tuple(demands)
        known = self._groups.get(group)
        others = [demand for other in self._groups.values() if other is not known for demand in other.declared]
        _require_one_kind([*others, *demands])
        if self._explicit is not None:
            for demand in demands:
                for resource, count in demand.resources.items():
                    _require_supply(resource[0], self._explicit.of(resource), count)
        if known is None:
            known = self._groups[group] = _Group(group)
        known.declared = demands

    def forget(self, group: Hashable) -> None:
        """The group is no more: what its instances hold is given back, and what they still say is ignored."""
        known = self._groups.pop(group, None)
        if known is not None:
            for member in known.instances.values():
                if member.running:
                    self._give_back(member)

    def add(self, group: Hashable, instance: int, demand: Demand) -> None:
        """A free instance of a declared group."""
        known = self._groups[group]
        invariant(instance not in known.instances, f"instance {instance} of {group} was added twice")
        self._orders += 1
        known.instances[instance] = _Instance(known, instance, demand, self._orders)

    def remove(self, group: Hashable, instance: int) -> None:
        """The instance gets no more grants; one that runs still gives back what it holds. No-op for one that is not here."""
        known = self._groups.get(group)
        member = None if known is None else known.instances.get(instance)
        if known is None or member is None:
            return
        if member.running:
            member.leaving = True
        else:
            del known.instances[instance]

    # Runs

    def want(self, group: Hashable) -> None:
        """The group has work for one more instance, until it says `unwant`."""
        self._groups[group].wants = True

    def unwant(self, group: Hashable) -> None:
        """The group has no more work."""
        self._groups[group].wants = False

    def release(self, group: Hashable, instance: int, *, used: bool = True) -> None:
        """The run is over; `used` false: it did not take place."""
        known = self._groups.get(group)
        if known is None:
            return
        member = known.instances.get(instance)
        if member is None or not member.running:
            invariant(False, f"instance {instance} of {group} gives back what it does not hold")
            raise AssertionError  # unreachable; tells the type checker so
        self._give_back(member)
        if not used:
            member.score -= member.demand.priority
        if member.leaving:
            del known.instances[instance]

    def take_grants(self) -> list[Grant]:
        """The instances that may run now, and hold their resources from now on. At most one instance of each group: whether it
        wants another one shows when that one has its work."""
        waiting = [
            member
            for group in self._groups.values()
            if group.wants
            for member in group.instances.values()
            if not member.running and not member.leaving
        ]
        if not waiting:
            return []
        waiting.sort(key=_turn)
        grants: list[Grant] = []
        granted: set[Hashable] = set()
        kept: set[Resource] = set()
        supply = self.supply()
        for member in waiting:
            demand = member.demand.resources
            if member.group.key in granted:
                continue
            if all(
                not count or (resource not in kept and self._used.get(resource, 0) + count <= supply.get(resource, 0))
                for resource, count in demand.items()
            ):
                granted.add(member.group.key)
                grants.append(self._grant(member, waiting))
            else:
                kept.update(resource for resource, count in demand.items() if count)
        return grants

    def _grant(self, member: _Instance, waiting: Sequence[_Instance]) -> Grant:
        for other in waiting:
            if not other.running and _compete(member, other):
                member.score = max(member.score, other.score - other.demand.priority)
        member.score += member.demand.priority
        member.running = True
        for resource, count in member.demand.resources.items():
            if count:
                self._used[resource] = self._used.get(resource, 0) + count
        return Grant(member.group.key, member.number)

    def _give_back(self, member: _Instance) -> None:
        member.running = False
        for resource, count in member.demand.resources.items():
            left = self._used.get(resource, 0) - count
            if left:
                self._used[resource] = left
            else:
                self._used.pop(resource, None)

    # State

    def activity(self, group: Hashable) -> GroupActivity:
        """The instances of this group now."""
        known = self._groups.get(group)
        members = () if known is None else tuple(known.instances.values())
        running = sum(member.running for member in members)
        return GroupActivity(free=len(members) - running, running=running, wants=known is not None and known.wants)

    def used(self) -> dict[Resource, int]:
        """The resources that are held now."""
        return dict(self._used)

    def supply(self) -> dict[Resource, int]:
        """The amount of each resource that an instance needs."""
        supply: dict[Resource, int] = {}
        for group in self._groups.values():
            for demand in group.declared:
                for resource, count in demand.resources.items():
                    supply[resource] = max(supply.get(resource, 0), count)
        if self._explicit is not None:
            return {resource: self._explicit.of(resource) for resource in supply}
        return supply


def _turn(member: _Instance) -> tuple[int, int]:
    return member.score, member.order


def _compete(one: _Instance, other: _Instance) -> bool:
    return one.group is other.group or not one.demand.resources.keys().isdisjoint(other.demand.resources)


def _require_one_kind(demands: Sequence[Demand]) -> None:
    resources = {resource for demand in demands for resource in demand.resources}
    of_machine = {name for name, device in resources if device is None}
    for name, device in sorted(resources, key=str):
        if device is not None and name in of_machine:
            raise InvalidArgument(
                f'Resource "{name}" is present as both global and device-specific resource in the model configuration.'
            )


def _require_supply(name: str, supply: int, needed: int) -> None:
    if supply < needed:
        raise InvalidArgument(
            f'Resource count for "{name}" is limited to {supply} which will prevent scheduling of one or more model instances, '
            f"the minimum required count is {needed}"
        )
