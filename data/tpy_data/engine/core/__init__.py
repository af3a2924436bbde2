"""Sans-IO decisions of the engine: what to load, switch, resize, unload and forget; which calls can never end."""

from tpy_data.engine.core.call_circles import CallingBatch, WaitingRequest, find_circle
from tpy_data.engine.core.plan import Action, Forget, Load, Phase, Resize, Running, Unload, plan

__all__ = [
    "Action",
    "CallingBatch",
    "Forget",
    "Load",
    "Phase",
    "Resize",
    "Running",
    "Unload",
    "WaitingRequest",
    "find_circle",
    "plan",
]
