"""What a backend gives, and what it is given.

Threads: `auto_complete`, `load` and `LoadedModel.unload` run in a loader thread; everything of a ModelInstance runs in that
instance's own thread, one call at a time. All of them may block; none of them may touch the Trio loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from tpy.backend.host_policy import ANYWHERE, HostPolicy
from tpy.backend.implicit_state import SequenceState
from tpy.backend.model_metrics import ModelMetrics
from tpy.backend.server_calls import ServerCalls
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.errors import TpyError
from tpy.messages import ParameterValue, SequencePosition, Tensor
from tpy.telemetry.custom_metrics import CustomMetrics


class BackendCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend supports. The engine refuses configurations beyond it, by name, at load.

    `default_model_filename` is what normalisation fills in. `default_kind` and `default_count` are for a missing
    instance_group on a machine without GPU. `batches_tensors` false: `execute` wants single requests unless the model asks for a
    list (python); it changes nothing but documentation for now. `ragged`: takes batches whose inputs with `allow_ragged_batch`
    differ in shape; `batch_io`: feeds its models the tensors of `batch_input` and cuts outputs by `batch_output`. One that is
    ragged without it leaves that to its models, as Triton's python backend does.
    """

    name: str
    default_model_filename: str
    devices: frozenset[InstanceKind] = frozenset({InstanceKind.KIND_CPU})
    default_kind: InstanceKind = InstanceKind.KIND_CPU
    default_count: int = 1
    decoupled: bool = False
    implicit_state: bool = False
    ragged: bool = False
    batch_io: bool = False
    version: str = ""


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Given once to a backend's factory. `config` holds this backend's `--backend-config` pairs, global ones merged in."""

    name: str
    config: Mapping[str, str] = msgspec.field(default_factory=dict)
    backend_directory: Path | None = None
    """The folder of a python-based backend (`<--backend-directory>/<name>`), or None."""


class ModelContext(msgspec.Struct, frozen=True, kw_only=True):
    """A model version to complete or load. `version_directory` holds the model file; `model_directory` is its parent."""

    name: str
    version: int
    generation: int
    config: ModelConfig
    model_directory: Path
    version_directory: Path
    server_id: str = "triton"
    placements: Sequence[InstancePlacement] = ()
    """The instances that will be made of it at first; none while the configuration is being completed."""
    log: Callable[[str, str], None] = lambda level, message: None
    """Log from any thread: level is "verbose", "info", "warning" or "error"."""
    server: ServerCalls | None = None
    """For models that call others; None where there is no server around them (tests)."""
    metrics: ModelMetrics = msgspec.field(default_factory=CustomMetrics)
    """For metrics that the model makes itself; those of a context made without are seen by nobody."""


class InstancePlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Where one instance runs. `name` is Triton's: `<group>_<index>`. `device_id` is 0 on CPU. `host_policy` is the name of its
    host policy, `host` what that says: the instance's thread is bound so already."""

    name: str
    kind: InstanceKind
    device_id: int = 0
    host_policy: str = ""
    group: str = ""
    host: HostPolicy = ANYWHERE


class ResponseSender(Protocol):
    """Sends the responses of one request of a decoupled model. Any thread, also after `execute` has returned.

    The request ends with its final response; whoever has a sender must send one, whatever happens. When `execute` raises, or
    returns a result with an error, every request of the batch that has not ended does, with that error.
    """

    def send(self, result: ExecutionResult | None, *, final: bool, wait: bool = True) -> None:
        """Send one response; `result` None with `final` ends the request without data. Raises ValueError after the final.

        Waits while as many responses as the server holds for one request (limits.py) are not taken; a cancelled request
        takes everything, for nobody. With `wait` False it never waits: for a backend that counts what was taken (`watch`) and
        makes its model wait elsewhere.
        """
        ...

    def watch(self, taken: Callable[[int], None], ended: Callable[[], None]) -> None:
        """Be told, on the Trio thread, how many more responses were taken (`taken`), and once when nobody waits any more
        (`ended`: cancelled, timed out, answered in another way; at once when that is so already). Both must return at once.
        Neither is called for a request that ended with its own final response. To be called before the first `send`."""
        ...


class ExecutionRequest(Protocol):
    """One request inside a batch, as a backend sees it.

    `inputs` maps input name to its array in the *model's* shape (reshape applied, batch dimension first when the model batches);
    optional inputs that were not given are absent. Arrays are read-only. `requested_outputs` empty means all.
    `timeout_us` is the caller's own (0 = none). `batch_size` is max(1, first dimension).

    Of a sequence, the control tensors of the configuration are among the `inputs`. An empty place in a batch of sequences (direct
    scheduling) is a request too, and is executed like any other: it is not READY, has inputs of zeros, correlation id 0 and no
    `sequence`, and its result goes nowhere.
    """

    @property
    def id(self) -> str: ...
    @property
    def inputs(self) -> Mapping[str, Tensor]: ...
    @property
    def requested_outputs(self) -> tuple[str, ...]: ...
    @property
    def parameters(self) -> Mapping[str, ParameterValue]: ...
    @property
    def sequence(self) -> SequencePosition | None: ...
    @property
    def timeout_us(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def sender(self) -> ResponseSender | None:
        """For decoupled models only."""
        ...

    @property
    def state(self) -> SequenceState | None:
        """For models with implicit state only, and then always there."""
        ...

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more. Cheap; may be called from any thread."""
        ...


class ExecutionResult(msgspec.Struct, frozen=True):
    """The answer to one request: outputs in the *model's* shapes, or an error for this request alone.

    Outputs that were not requested may be included; the engine drops them, and puts the rest in the configuration's order.

    `reschedule`, for models with `iterative_sequence` only (release flag RESCHEDULE): this was one iteration; the request goes
    back to its scheduler to be executed again, later. Nothing else of the result counts then. A decoupled model that gives
    requests back returns one result per request instead of none; the others of them are ignored unless they have an error.
    """

    outputs: Sequence[Tensor] = ()
    error: TpyError | None = None
    parameters: Mapping[str, ParameterValue] = msgspec.field(default_factory=dict)
    reschedule: bool = False


class PhaseTimes:
    """Boundaries of one execution, in time.monotonic_ns. The engine sets `start` and `end`; the backend says when its inputs
    were ready and when outputs began; what it does not say counts as inference."""

    __slots__ = ("end_ns", "input_end_ns", "output_start_ns", "start_ns")

    def __init__(self) -> None:
        self.start_ns = 0
        self.input_end_ns = 0
        self.output_start_ns = 0
        self.end_ns = 0

    def inputs_ready(self) -> None:
        """Inputs are gathered; inference begins."""
        self.input_end_ns = time.monotonic_ns()

    def outputs_begin(self) -> None:
        """Inference is over; outputs are being made."""
        self.output_start_ns = time.monotonic_ns()


class ExecutionBatch(msgspec.Struct, frozen=True):
    """Requests that run together; their batch sizes sum to at most max_batch_size (one request when the model does not batch).

    All have the same inputs, with equal shapes apart from the batch dimension and from ragged inputs (`tpy.backend.batching_of`).
    """

    requests: Sequence[ExecutionRequest]
    times: PhaseTimes


class InstanceFailure(Exception):
    """The instance can no longer run anything (its process died, its device is lost).

    `execute` raises it: every request of the batch is answered with INTERNAL and this text, the instance is closed and created
    again, after a back-off when it had not lived long. With `begun` False the instance cannot have seen anything of the batch,
    which then goes to another instance, or waits for one. Any other exception from `execute` fails the batch and keeps the
    instance.
    """

    def __init__(self, reason: str, *, begun: bool = True) -> None:
        super().__init__(reason)
        self.begun = begun


class ModelInstance(Protocol):
    """One copy of a model, with its own thread, device and buffers."""

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """Run the batch; one result per request, in order.

        An exception fails every request of the batch (a TpyError keeps its code and text; another becomes INTERNAL).
        For decoupled models the returned sequence is empty, unless requests are given back (`ExecutionResult.reschedule`), and
        answers go through `request.sender`.
        """
        ...

    def close(self) -> None:
        """Release everything. Called once, never during `execute`."""
        ...


class LoadedModel(Protocol):
    """A loaded version: what its instances share (weights, a session)."""

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """Make an instance. Called in the new instance's own thread. Raises TpyError with the reason when it cannot."""
        ...

    def unload(self) -> None:
        """Release what is shared. Called once, after every instance was closed."""
        ...


class Backend(Protocol):
    """One backend. Created once per server, on first use by a model."""

    @property
    def capabilities(self) -> BackendCapabilities: ...

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """The configuration with what the model itself says filled in; `context.config` when nothing is to be
        filled. Raises TpyError (InvalidArgument for contradictions) with Triton's text where it has one."""
        ...

    def load(self, context: ModelContext) -> LoadedModel:
        """Load the version; `context.config` is normalised and validated. Raises TpyError with the reason when it cannot."""
        ...

    def close(self) -> None:
        """The server ends; every model was unloaded."""
        ...


BackendFactory = Callable[[BackendSettings], Backend]
"""What an entry point of group `tpy.backends` names."""


def as_array(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """The tensor's array, C-contiguous (a copy only when it is not)."""
    return np.ascontiguousarray(tensor.array) if tensor.array.ndim else tensor.array
