"""The present activity of an instance, for an explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpy.backend import InstancePlacement
from tpy.messages import ExecutedBatch, InstanceActivity, InstanceState, MemoryGrowth
from tpy_data.engine.versions.version_engine import InstanceSlot

if TYPE_CHECKING:
    from tpy_data.engine.channels.rate_limiter import InstanceGate


def failed_instance(placement: InstancePlacement, reason: str) -> InstanceActivity:
    """One that has ended, and is started again."""
    return InstanceActivity(
        name=placement.name,
        kind=placement.kind.name,
        device_id=placement.device_id,
        state=InstanceState.FAILED,
        reason=reason,
    )


def live_instance(
    placement: InstancePlacement,
    slot: InstanceSlot | None,
    gate: InstanceGate | None,
    now_ns: int,
    *,
    leaves: bool,
    memory: MemoryGrowth | None = None,
) -> InstanceActivity:
    """One that is there. `slot` None: it is passive; `leaves`: it takes nothing more."""
    kind = placement.kind.name
    if slot is None:
        return InstanceActivity(
            name=placement.name, kind=kind, device_id=placement.device_id, state=InstanceState.PASSIVE, credit=0, memory=memory
        )
    recent = tuple(ExecutedBatch(times.start_ns, times.start_ns + sum(times[1:]), rows) for rows, times in slot.recent)
    state, executing_ns = InstanceState.IDLE, 0
    if slot.held and gate is not None and gate.keeps_back(slot.number):
        state = InstanceState.HELD_BACK
    elif slot.held:
        state = InstanceState.EXECUTING
        executing_ns = max(0, now_ns - max(slot.busy_since_ns, recent[-1].end_ns if recent else 0))
    return InstanceActivity(
        name=placement.name,
        kind=kind,
        device_id=placement.device_id,
        state=InstanceState.CLOSING if leaves else state,
        executing_ns=executing_ns,
        held=slot.held,
        credit=slot.credit,
        batches=slot.completed,
        recent=recent,
        memory=memory,
    )
