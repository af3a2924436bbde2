"""The backend contract: all that a backend may know of the server.

A backend is found by entry point (group `tpy.backends`, name = the backend's name, value = a callable that takes
`BackendSettings` and returns a `Backend`). It imports this package, `tpy.messages`, `tpy.devices`, `tpy.config` and `tpy.errors`,
nothing else of the server. `tpy.testing.conformance` is the suite that every backend passes.
"""

from tpy.backend.batching import gather, scatter
from tpy.backend.contract import (
    Backend,
    BackendCapabilities,
    BackendFactory,
    BackendSettings,
    CopiesInputs,
    InstanceFailure,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
)
from tpy.backend.device_instance import DeviceInstance, drain, gather_where_it_is, stays_on_device
from tpy.backend.execution import ExecutionBatch, ExecutionRequest, ExecutionResult, PhaseTimes, ResponseSender
from tpy.backend.flaws import flaw_of
from tpy.backend.host_memory import HasHostMemory
from tpy.backend.host_policy import HostPolicy, bound
from tpy.backend.implicit_state import SequenceState, StateSpec, control_datatype, state_specs
from tpy.backend.isolation import ISOLATION, Isolation, default_isolation, isolation_of
from tpy.backend.late_answer import AnswerLater
from tpy.backend.model_metrics import Metric, MetricFamily, ModelMetrics
from tpy.backend.overlapping_instance import OverlappingInstance
from tpy.backend.queued_instance import BatchListener, Outcome, QueuedInstance
from tpy.backend.ragged import BATCH_INPUT_RANKS, Batching, batching_of
from tpy.backend.readiness import ChecksReadiness
from tpy.backend.server_calls import AfterRead, CallSink, DescriptorReader, Done, LoopCalls, ServerCall, ServerCalls, WaitingBatch
from tpy.backend.watched_instance import ShowsStack, WatchedInstance

__all__ = [
    "BATCH_INPUT_RANKS",
    "ISOLATION",
    "AfterRead",
    "AnswerLater",
    "Backend",
    "BackendCapabilities",
    "BackendFactory",
    "BackendSettings",
    "BatchListener",
    "Batching",
    "CallSink",
    "ChecksReadiness",
    "CopiesInputs",
    "DescriptorReader",
    "DeviceInstance",
    "Done",
    "ExecutionBatch",
    "ExecutionRequest",
    "ExecutionResult",
    "HasHostMemory",
    "HostPolicy",
    "InstanceFailure",
    "InstancePlacement",
    "Isolation",
    "LoadedModel",
    "LoopCalls",
    "Metric",
    "MetricFamily",
    "ModelContext",
    "ModelInstance",
    "ModelMetrics",
    "Outcome",
    "OverlappingInstance",
    "PhaseTimes",
    "QueuedInstance",
    "ResponseSender",
    "SequenceState",
    "ServerCall",
    "ServerCalls",
    "ShowsStack",
    "StateSpec",
    "WaitingBatch",
    "WatchedInstance",
    "batching_of",
    "bound",
    "control_datatype",
    "default_isolation",
    "drain",
    "flaw_of",
    "gather",
    "gather_where_it_is",
    "isolation_of",
    "scatter",
    "state_specs",
    "stays_on_device",
]
