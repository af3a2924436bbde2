"""The requests that a core of sequences has, and what they wait for."""

from __future__ import annotations

from collections.abc import Collection

from tpy.messages import LevelActivity, QueueActivity, SequenceActivity, WaitReason
from tpy_data.schedulers.core.contract import CoreSnapshot
from tpy_data.schedulers.core.sequence_backlog import SequenceBacklog
from tpy_data.schedulers.core.sequence_options import SequenceOptions
from tpy_data.schedulers.core.sequence_slots import SequenceInstance


def explain(
    members: Collection[SequenceInstance],
    backlog: SequenceBacklog,
    options: SequenceOptions,
    now_ns: int,
    *,
    snapshot: CoreSnapshot,
    due_ns: int | None,
    held_back: bool,
) -> QueueActivity:
    """As `SchedulerCore.explain`, from the parts of the core. `due_ns`: the first time at which a batch that waits for company is
    sent; `held_back`: the scheduler has not begun."""
    if not snapshot.queued:
        reason = WaitReason.NOTHING
    elif not members:
        reason = WaitReason.NO_INSTANCE
    elif held_back:
        reason = WaitReason.START_DELAY
    elif backlog:
        reason = WaitReason.SEQUENCE_SLOT
    elif due_ns is not None:
        reason = WaitReason.BATCH_DELAY
    else:
        reason = WaitReason.INSTANCE
    lines = [line for member in members for line in member.lines.values()]
    firsts = [ticket for line in (*lines, *backlog.first()) if (ticket := line.first()) is not None]
    oldest_ns = max((now_ns - ticket.queued_ns for ticket in firsts), default=0)
    return QueueActivity(
        waits_for=reason,
        executing=snapshot.executing,
        levels=(LevelActivity(waiting=snapshot.queued, oldest_ns=oldest_ns, size_max=options.waiting_max),),
        due_ns=max(0, due_ns - now_ns) if due_ns is not None and reason is WaitReason.BATCH_DELAY else None,
        sequences=SequenceActivity(live=snapshot.sequences, waiting=len(backlog), slots=options.slots * len(members)),
    )
