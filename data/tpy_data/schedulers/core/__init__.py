"""Sans-IO scheduler cores: no clock, loop, thread, socket, file, log, randomness. Time is an argument, in nanoseconds."""

from tpy_data.schedulers.core.contract import (
    Action,
    BreakUp,
    CoreSnapshot,
    Dispatch,
    LiveSequence,
    Outcome,
    Phase,
    Refuse,
    Respond,
    Retired,
    SchedulerCore,
    SequenceEnd,
    SequenceEnded,
    Ticket,
)
from tpy_data.schedulers.core.factory import make_core

__all__ = [
    "Action",
    "BreakUp",
    "CoreSnapshot",
    "Dispatch",
    "LiveSequence",
    "Outcome",
    "Phase",
    "Refuse",
    "Respond",
    "Retired",
    "SchedulerCore",
    "SequenceEnd",
    "SequenceEnded",
    "Ticket",
    "make_core",
]
