"""The protocols that a backend implements, and the values that it is given.

Threads: `auto_complete` and `load` run in a loader thread, `LoadedModel.unload` in another or in an unloader thread; everything
of a ModelInstance runs in that instance's own thread, one call at a time, but a quick `execute` of an AnyThreadInstance, which
may run on the Trio loop. All others may block; none may touch the Trio loop.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import msgspec

from tpy.backend.execution import ExecutionBatch, ExecutionResult
from tpy.backend.host_policy import ANYWHERE, HostPolicy
from tpy.backend.model_metrics import ModelMetrics
from tpy.backend.server_calls import ServerCalls
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, SecondaryDevice
from tpy.devices import NO_DEVICES, Devices
from tpy.errors import InvalidArgument
from tpy.telemetry.custom_metrics import CustomMetrics


class BackendCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The features of a backend. A load fails with the name of each feature that its configuration needs and the backend lacks.

    `default_model_filename` is filled in where the configuration does not name one; `default_kind` and `default_count` are for a
    missing instance_group on a machine without GPU. `ragged`: takes batches whose inputs with `allow_ragged_batch` differ in
    shape; `batch_io`: feeds its models the tensors of `batch_input` and cuts outputs by `batch_output`. A backend that is ragged
    without it leaves that to its models, as Triton's python backend does. `secondary_devices`: does something with those of a
    placement. `gpus_unusable`, of a backend whose devices have no GPU: why that is so here, and what to install. `engine`: it is
    an `EngineBackend`.
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
    secondary_devices: bool = False
    engine: bool = False
    gpus_unusable: str = ""
    version: str = ""


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Given once to a backend's factory. `config` holds this backend's `--backend-config` pairs, global ones merged in."""

    name: str
    config: Mapping[str, str] = msgspec.field(default_factory=dict)
    backend_directory: Path | None = None
    """The folder of a python-based or compiled backend (`<--backend-directory>/<name>`), or None."""
    library: Path | None = None
    """The file of a compiled backend, or None."""


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
    devices: Devices = NO_DEVICES
    """The GPUs of the server, with their pools of memory."""
    metrics: ModelMetrics = msgspec.field(default_factory=CustomMetrics)
    """For metrics that the model makes itself; nobody sees metrics of a context made without it."""


class InstancePlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The placement of one instance. `name` is Triton's: `<group>_<index>`. `device_id` is 0 on CPU. `host_policy` is the name
    of its host policy, `host` what that says: the instance's thread is bound so already. `profiles` and `secondary_devices` are
    those of its group."""

    name: str
    kind: InstanceKind
    device_id: int = 0
    host_policy: str = ""
    group: str = ""
    host: HostPolicy = ANYWHERE
    profiles: tuple[str, ...] = ()
    secondary_devices: tuple[SecondaryDevice, ...] = ()


class InstanceFailure(Exception):
    """The instance can no longer run anything (its process died, its device is lost).

    `execute` raises it: every request of the batch is answered with INTERNAL and this text, the instance is closed and created
    again, after a back-off if it failed soon. With `begun` False the instance cannot have seen anything of the batch,
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


@runtime_checkable
class CopiesInputs(Protocol):
    """A LoadedModel may have this as well: one whose instances copy every input to where the model sees it, as instances in other
    processes do. Inputs of such models may be tensors in regions of clients (`tpy.regions.RegionArray`)."""

    @property
    def copies_inputs(self) -> bool: ...


class Backend(Protocol):
    """One backend. Created once per server, on first use by a model."""

    @property
    def capabilities(self) -> BackendCapabilities: ...

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """The configuration completed from the model; `context.config` when nothing is to be
        filled. Raises TpyError (InvalidArgument for contradictions) with Triton's text where it has one."""
        ...

    def load(self, context: ModelContext) -> LoadedModel:
        """Load the version; `context.config` is normalised and validated. Raises TpyError with the reason when it cannot."""
        ...

    def close(self) -> None:
        """The server ends; every model was unloaded."""
        ...


BackendFactory = Callable[[BackendSettings], Backend]
"""The type of an entry point of group `tpy.backends`."""


ISOLATION: Final = "isolation"
"""The parameter of a model, and the key of `--backend-config`."""

SANDBOX: Final = "sandbox"
"""The parameter of a model, and the key of `--backend-config`, for workers with few permissions."""

_EARLIER_NAME: Final = "TPY_PYTHON_ISOLATION"
"""The parameter's name when only Python models had it."""


class Isolation(enum.Enum):
    """The place where instances run. A backend that is to run in processes unless a configuration says otherwise, because its
    libraries conflict with others, says so on its factory: `create.default_isolation = Isolation.PROCESS`."""

    PROCESS = "process"
    """Each in a worker process: a crash ends that instance, and nothing else."""
    THREAD = "thread"
    """Each in a thread of the server's process."""


def isolation_of(config: ModelConfig, settings: Mapping[str, str]) -> Isolation | None:
    """Reads the model's parameters, else its backend's settings; None for nothing. Raises InvalidArgument for another word."""
    name = ISOLATION if config.parameter(ISOLATION) or not config.parameter(_EARLIER_NAME) else _EARLIER_NAME
    text = config.parameter(name)
    where = f"parameter {name} of model '{config.name}'"
    if not text:
        text, where = settings.get(ISOLATION, ""), f"--backend-config={config.backend},{ISOLATION}"
    if not text:
        return None
    try:
        return Isolation(text)
    except ValueError:
        raise InvalidArgument(f"{where} is '{text}', expected 'process' or 'thread'") from None


def default_isolation(factory: object) -> Isolation:
    """That of a backend whose factory this is."""
    said = getattr(factory, "default_isolation", Isolation.THREAD)
    return said if isinstance(said, Isolation) else Isolation.THREAD
