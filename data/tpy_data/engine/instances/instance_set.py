"""InstanceSet: the instances of one loaded version, growing and shrinking."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import trio

from tpy.backend import ChecksReadiness
from tpy.errors import TpyError
from tpy.limits import RETRY_AFTER_S_MAX
from tpy.messages import InstanceActivity, MemoryUsage
from tpy_data.engine.instances.supervised_instance import InstanceRecipe, SupervisedInstance
from tpy_data.engine.loading.memory_meter import total
from tpy_data.engine.loading.placing import PlacedInstance

REMARKS_MAX: Final = 4
"""Instances that the remark about a version names."""


class InstanceSet:
    """All instances of a version. `nursery` is that of the version's task and holds their supervision."""

    def __init__(self, recipe: InstanceRecipe, nursery: trio.Nursery, on_change: Callable[[], object]) -> None:
        self._recipe = recipe
        self._nursery = nursery
        self._on_change = on_change
        self._numbers = itertools.count()
        self._members: list[SupervisedInstance] = []
        self._supervised: list[SupervisedInstance] = []
        self._gone_restarts = 0  # of members that a resize sent away
        self._starting: Sequence[SupervisedInstance] = ()

    def alive(self) -> bool:
        """True when any instance takes batches. Passive instances never do."""
        return any(member.alive for member in self._members if not member.placed.passive)

    def beyond_help(self) -> bool:
        """True when none takes batches, and none of them could be started again so far."""
        active = [member for member in self._members if not member.placed.passive]
        return bool(active) and all(member.beyond_help for member in active)

    def readiness_checks(self) -> list[ChecksReadiness]:
        """The instances that are there and say themselves whether they are ready, passive ones too."""
        there: list[object] = [member.instance for member in self._members]
        return [instance for instance in there if isinstance(instance, ChecksReadiness) and instance.has_readiness_check]

    def memory_usage(self) -> tuple[MemoryUsage, ...]:
        """Memory of the current instances, without what they share."""
        return total([member.memory for member in self._members])

    def memory_bytes(self) -> int:
        """The sum of `memory_usage`."""
        return sum([usage.byte_size for member in self._members for usage in member.memory])

    def processes(self) -> list[SupervisedInstance]:
        """As `Served.processes`."""
        return [member for member in self._members if member.process is not None]

    def load(self) -> float:
        """As `Served.load`."""
        return self._recipe.engine.load()

    def restarts(self) -> int:
        """Instances that failed and were started again."""
        return self._gone_restarts + sum(member.restarts for member in self._members)

    def retry_s(self) -> int | None:
        """As `Served.retry_s`."""
        due_s = min((due_s for member in self._members if (due_s := member.restart_in_s) is not None), default=None)
        return None if due_s is None else min(max(1, math.ceil(round(due_s, 3))), RETRY_AFTER_S_MAX)

    def executing_s(self) -> float:
        """Seconds for which one of them executes without finishing a batch, where that is long; else 0."""
        return max((member.executing_s for member in self._members), default=0.0)

    def explain(self, now_ns: int) -> tuple[InstanceActivity, ...]:
        """The activity of each of them, in order."""
        return tuple(member.explain(now_ns) for member in self._members)

    def all_execute_s(self) -> float:
        """Seconds for which all that take batches have been executing without finishing one; 0 without any."""
        return min((member.executing_s for member in self._members if member.alive and not member.placed.passive), default=0.0)

    def remark(self) -> str:
        """The instances that execute for long, and the leaking ones, in words; "" for none."""
        long = [
            f"instance '{member.name}' for more than {member.reported_s:g} s" for member in self._members if member.reported_s
        ]
        leaking = [
            f"instance '{member.name}'" for member in self._members if (growth := member.growth) is not None and growth.leaks
        ]
        remarks = (_remark("still executing a batch", long), _remark("memory leaks", leaking))
        return "; ".join(filter(None, remarks))

    def reason(self) -> str:
        """The reason why no instance is alive: that of the last one in order that failed."""
        return next((member.reason for member in reversed(self._members) if member.reason), "")

    async def resize(self, wanted: Iterable[PlacedInstance]) -> None:
        """Have exactly these, keeping what is there already, the living first; names and order do not matter.

        New ones are made first, all at the same time; the superfluous ones go, after their running batch, when all new ones are
        there. Raises the first TpyError when one cannot be made; then everything is as before.
        """
        # sorted keeps the order among equals: False, which is alive, comes first.
        surplus = sorted(self._members, key=lambda member: not member.alive)
        missing = []
        for placed in wanted:
            kept = next((member for member in surplus if _same_place(member.placed, placed)), None)
            if kept is None:
                missing.append(placed)
            else:
                surplus.remove(kept)
        added = await self._start(missing)
        for member in added:
            self._members.append(member)
            self._supervised.append(member)
            self._nursery.start_soon(self._supervise, member, name=member.placed.placement.name)
        for member in surplus:
            self._members.remove(member)
            self._gone_restarts += member.restarts
            member.retire()

    async def wait_closed(self) -> None:
        """Until those are closed that a resize sent away, and that nothing ties to requests any more."""
        for member in [member for member in self._supervised if member not in self._members and member.closing]:
            await member.ended.wait()

    async def close(self) -> None:
        """Close all, including instances that a resize removed; each after the batch that it may be running."""
        self._members.clear()
        while self._supervised:
            for member in self._supervised:
                member.stop()
            await self._supervised[-1].ended.wait()

    def give_up_starting(self) -> None:
        """Wait no longer for instances that are being made; they are left behind."""
        for member in (*self._starting, *self._supervised):
            member.give_up_starting()

    async def _supervise(self, member: SupervisedInstance) -> None:
        try:
            await member.supervise()
        finally:
            self._supervised.remove(member)
            member.ended.set()

    async def _start(self, missing: Sequence[PlacedInstance]) -> list[SupervisedInstance]:
        members = [SupervisedInstance(self._numbers, placed, self._recipe, self._on_change) for placed in missing]
        self._starting = members
        errors: list[TpyError] = []

        async def start(member: SupervisedInstance) -> None:
            try:
                await member.start()
            except TpyError as error:
                errors.append(error)

        complete = False
        try:
            async with trio.open_nursery() as nursery:
                for member in members:
                    nursery.start_soon(start, member)
            if errors:
                raise errors[0]
            complete = True
        finally:
            self._starting = ()
            if not complete:
                for member in members:
                    await member.discard()
        return members

    def counts(self) -> Counter[str]:
        """Instances by group, for logs."""
        return Counter(member.placed.placement.group for member in self._members)


def _remark(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = [f"{len(names) - REMARKS_MAX} more"] if len(names) > REMARKS_MAX else []
    return f"{what}: {', '.join([*names[:REMARKS_MAX], *more])}"


def _same_place(one: PlacedInstance, other: PlacedInstance) -> bool:
    a, b = one.placement, other.placement
    return (one.passive, one.limits) == (other.passive, other.limits) and all(
        getattr(a, field) == getattr(b, field) for field in ("kind", "device_id", "host_policy", "profiles", "secondary_devices")
    )
