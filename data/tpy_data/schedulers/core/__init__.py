"""Sans-IO scheduler cores: no clock, loop, thread, socket, file, log, randomness. Time is an argument, in nanoseconds."""

from tpy_data.schedulers.core.contract import (
    Action,
    CoreSnapshot,
    Dispatch,
    Outcome,
    Refuse,
    Respond,
    SchedulerCore,
    Ticket,
)

__all__ = ["Action", "CoreSnapshot", "Dispatch", "Outcome", "Refuse", "Respond", "SchedulerCore", "Ticket"]
