"""The backend contract: all that a backend may know of the server.

A backend is found by entry point (group `tpy.backends`, name = the backend's name, value = a callable that takes
`BackendSettings` and returns a `Backend`). It imports this package, `tpy.messages`, `tpy.config` and `tpy.errors`, nothing
else of the server. `tpy.testing.conformance` is the suite that every backend passes.
"""

from tpy.backend.batching import gather, scatter
from tpy.backend.contract import (
    Backend,
    BackendCapabilities,
    BackendFactory,
    BackendSettings,
    ExecutionBatch,
    ExecutionRequest,
    ExecutionResult,
    InstanceFailure,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
    PhaseTimes,
    ResponseSender,
)
from tpy.backend.implicit_state import SequenceState, StateSpec, state_specs
from tpy.backend.late_answer import AnswerLater
from tpy.backend.ragged import BATCH_INPUT_RANKS, Batching, batching_of

__all__ = [
    "AnswerLater",
    "BATCH_INPUT_RANKS",
    "Backend",
    "BackendCapabilities",
    "BackendFactory",
    "BackendSettings",
    "Batching",
    "ExecutionBatch",
    "ExecutionRequest",
    "ExecutionResult",
    "InstanceFailure",
    "InstancePlacement",
    "LoadedModel",
    "ModelContext",
    "ModelInstance",
    "PhaseTimes",
    "ResponseSender",
    "SequenceState",
    "StateSpec",
    "batching_of",
    "gather",
    "scatter",
    "state_specs",
]
