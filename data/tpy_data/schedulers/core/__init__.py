"""Sans-IO scheduler cores: no clock, loop, thread, socket, file, log, randomness. Time is an argument, in nanoseconds."""

from tpy_data.schedulers.core.contract import (
    Action,
    BatchStrategy,
    CoreSnapshot,
    Dispatch,
    LiveSequence,
    Outcome,
    Phase,
    Refuse,
    Resource,
    Respond,
    Retired,
    Revoke,
    SchedulerCore,
    SequenceEnd,
    SequenceEnded,
    Ticket,
)
from tpy_data.schedulers.core.dynamic_options import NO_START_DELAY, StartDelay
from tpy_data.schedulers.core.factory import make_core

__all__ = [
    "NO_START_DELAY",
    "Action",
    "BatchStrategy",
    "CoreSnapshot",
    "Dispatch",
    "LiveSequence",
    "Outcome",
    "Phase",
    "Refuse",
    "Resource",
    "Respond",
    "Retired",
    "Revoke",
    "SchedulerCore",
    "SequenceEnd",
    "SequenceEnded",
    "StartDelay",
    "Ticket",
    "make_core",
]
