"""GatedDriver: a driver whose core has an instance only while that may run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from tpy.clock import Clock
from tpy.messages import QueueActivity, WaitReason
from tpy_data.schedulers.core.contract import SchedulerCore
from tpy_data.schedulers.core.rate_limiter import GroupActivity
from tpy_data.schedulers.driver import Performer, SchedulerDriver


class PooledCore(SchedulerCore, Protocol):
    """A core that gives work to whichever instance is idle."""

    def wants_instance(self, now_ns: int) -> bool:
        """True when one more idle instance would be given work now. `next_deadline_ns` says when that may change by itself."""
        ...

    def take_idle(self) -> list[int]:
        """Take out the idle instances."""
        ...


class Gate(Protocol):
    """Decides which instances may run."""

    @property
    def grant(self) -> Callable[[], None]:
        """Let run who may. Instances are given to the taker, inside the call."""
        ...

    def take(self, taker: Callable[[int], None]) -> None:
        """Give instances to this."""
        ...

    def add(self, number: int) -> None:
        """A free instance."""
        ...

    def remove(self, number: int) -> None:
        """It gets nothing more; one that runs still gives back what it holds."""
        ...

    def want(self, wanted: bool) -> None:
        """Tell whether there is work for one more instance."""
        ...

    def release(self, number: int, *, used: bool = True) -> None:
        """The instance's batch is over, or did not take place."""
        ...

    def activity(self) -> GroupActivity:
        """The instances now."""
        ...


class GatedDriver(SchedulerDriver):
    """As its base, but instances belong to the gate. One that may run is granted to the core, which forms a batch for it then and
    not before; when the batch is over, or no batch was formed after all, it goes back to the gate."""

    __slots__ = ("_gate", "_granted", "_leaving", "_pooled")

    def __init__(self, core: PooledCore, clock: Clock, performer: Performer, gate: Gate) -> None:
        super().__init__(core, clock, performer)
        self._pooled = core
        self._gate = gate
        self._granted: set[int] = set()
        self._leaving: set[int] = set()
        gate.take(self._take)

    def add_instance(self, instance: int, *, prefetch: bool = False, credit: int = 1, tokens: int = 0) -> None:
        """A new idle instance. Its credit is one batch, whenever the gate grants it: others may have a better claim to what it
        holds."""
        self._gate.add(instance)
        self._perform()

    def remove_instance(self, instance: int) -> None:
        """The instance gets no new batch; one that it runs still comes to its end."""
        self._revoke()
        self._gate.remove(instance)
        if instance in self._granted and instance not in self._leaving:
            self._leaving.add(instance)
            self._core.remove_instance(instance, self._now())
        self._perform()

    def retire_instance(self, instance: int) -> None:
        """As `remove_instance`: nothing ties requests to it."""
        self.remove_instance(instance)
        self._performer.retired(instance)

    def done(self, instance: int, times_ns: Sequence[int] = (0,)) -> None:
        """The batch on this instance is over."""
        now_ns = self._now()
        if instance not in self._leaving:
            self._core.remove_instance(instance, now_ns)  # or it would be given its next batch
        self._core.done(instance, now_ns, times_ns)
        self._give_back(instance, used=True)

    def revoked(self, instance: int, batches: int) -> None:
        """The batch that this instance, which has failed, did not start comes back."""
        self._core.revoked(instance, self._now(), batches)
        self._give_back(instance, used=False)

    def explain(self) -> QueueActivity:
        """As in the base. The core knows granted instances only: the gate knows the others."""
        queue = super().explain()
        if queue.waits_for not in (WaitReason.INSTANCE, WaitReason.NO_INSTANCE) or queue.waiting == queue.prefetched:
            return queue
        activity = self._gate.activity()
        if activity.free and activity.wants:
            reason = WaitReason.RATE_LIMITER
        elif activity.free:
            reason = WaitReason.BATCH_DELAY
        else:
            reason = WaitReason.INSTANCE if activity.running else WaitReason.NO_INSTANCE
        return msgspec.structs.replace(queue, waits_for=reason)

    def _give_back(self, instance: int, *, used: bool) -> None:
        """The instance holds nothing any more."""
        self._leaving.discard(instance)
        self._granted.remove(instance)
        self._gate.release(instance, used=used)
        self._perform()

    def _take(self, instance: int) -> None:
        """The gate grants this instance."""
        self._granted.add(instance)
        self._core.add_instance(instance, self._now())
        self._perform()

    def _perform(self) -> None:
        super()._perform()
        if self._performing:
            return
        self._revoke()
        self._gate.want(self._pooled.wants_instance(self._now()))
        self._gate.grant()
        deadline_ns = self._core.next_deadline_ns()  # to look whether an instance is wanted may have set one
        if deadline_ns is not None:
            self._alarm.bring_forward(deadline_ns)

    def _revoke(self) -> None:
        """Take back the instances that were granted and are not needed after all."""
        for instance in self._pooled.take_idle():
            self._granted.remove(instance)
            self._gate.release(instance, used=False)
