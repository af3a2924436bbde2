"""A loaded version: its engine, once on each device."""

from __future__ import annotations

import threading
from typing import Any

from tpy.backend import InstancePlacement, ModelContext, ModelInstance, bound, state_specs
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.devices import Device
from tpy.errors import InvalidArgument
from tpy_backends.file_backend import model_file
from tpy_backends.tensorrt.execution import ContextDemand, EngineExecution, SharedEngine
from tpy_backends.tensorrt.graph_specs import graph_specs
from tpy_backends.tensorrt.instance import TensorRTInstance
from tpy_backends.tensorrt.library import Library, make_logger
from tpy_backends.tensorrt.plan import deserialize, read_plan
from tpy_backends.tensorrt.settings import model_settings
from tpy_backends.tensorrt.signature import EngineSignature, read_signature
from tpy_backends.tensorrt.validation import validate, validate_profile
from tpy_data.backends.states import ImplicitState, StatefulInstance

FILENAMES = ("model.plan", "model.engine")

_DESERIALIZING = threading.Lock()
"""TensorRT makes one engine at a time in a process."""


class TensorRTModel:
    """A `LoadedModel`. The instances of a device (and a DLA core) share the engine, and so the weights; each has its own
    contexts."""

    def __init__(self, context: ModelContext, library: Library, *, version_compatible: bool) -> None:
        """Reads nothing yet. Raises InvalidArgument for a wrong parameter or graph."""
        self._context = context
        self._library = library
        self._version_compatible = version_compatible
        self._settings = model_settings(context.config)
        self._graphs = graph_specs(context.config)
        self._lock = threading.Lock()
        self._plans: dict[tuple[int, int | None], SharedEngine] = {}

    def prepare(self) -> None:
        """Make the engine of the first instance's device, so that a broken model fails here. Raises TpyError."""
        if self._context.placements:
            self.plan(self._context.placements[0])

    def signature(self, placement: InstancePlacement) -> EngineSignature:
        """Returns what the engine says of itself, without a look at the configuration. Raises TpyError."""
        return self._load(placement).signature

    def plan(self, placement: InstancePlacement) -> SharedEngine:
        """The engine on the placement's device. Raises TpyError, also when the configuration does not fit it."""
        self._require_gpu(placement)
        key = placement.device_id, _dla_core(placement)
        with self._lock:
            found = self._plans.get(key)
            if found is None:
                found = self._load(placement)
                validate(self._context.config, found.signature)
                self._plans[key] = found
            return found

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """In the instance's thread. Raises TpyError."""
        context, config = self._context, self._context.config
        with bound(placement.host):
            plan = self.plan(placement)
        named = [validate_profile(config, profile, len(plan.signature.profiles)) for profile in placement.profiles]
        profiles = sorted(set(named) or {0})
        device = context.devices.get(placement.device_id)
        demand = ContextDemand(
            model_name=context.name,
            profiles=profiles,
            batch_max=config.max_batch_size,
            unbounded=_unbounded(config),
            strategy=self._settings.allocation_strategy,
            graphs=self._graphs,
        )
        with device.current():
            stream = device.stream(self._settings.stream_priority)
            execution = EngineExecution(plan, context.devices, device, stream, demand, context.log)
        context.log(
            "info",
            f"Created instance {placement.name} on GPU {device.id} with stream priority {self._settings.stream_priority} and "
            f"optimization profile {', '.join(map(str, profiles))}",
        )
        instance = TensorRTInstance(execution, plan.signature, context.devices, device, config)
        specs = state_specs(config)
        return StatefulInstance(instance, ImplicitState(specs, batching=config.max_batch_size > 0)) if specs else instance

    def unload(self) -> None:
        """Let go of the engines, each with its device as the current one."""
        with self._lock:
            while self._plans:
                (device_id, _), plan = self._plans.popitem()
                with self._context.devices.get(device_id).current():
                    del plan

    def _require_gpu(self, placement: InstancePlacement) -> None:
        if placement.kind is not InstanceKind.KIND_GPU:
            raise InvalidArgument(f"unable to load model '{self._context.name}', TensorRT backend supports only GPU device")

    def _load(self, placement: InstancePlacement) -> SharedEngine:
        context, library = self._context, self._library
        path = model_file(context, FILENAMES, placement=placement)
        content = read_plan(path, context.name)
        device: Device = context.devices.get(placement.device_id)
        context.log("verbose", f"opening '{path}' for model '{context.name}' on GPU {device.id}")
        with _DESERIALIZING, device.current():
            logger = make_logger(library, context.log)
            runtime = self._runtime(logger, _dla_core(placement))
            engine = deserialize(library, runtime, logger, content, context.name)
            return SharedEngine(library, logger, engine, read_signature(library, engine))

    def _runtime(self, logger: Any, dla_core: int | None) -> Any:
        runtime = self._library.Runtime(logger)
        if dla_core is not None:
            if dla_core >= runtime.num_DLA_cores:
                raise InvalidArgument(
                    f"unable to create TensorRT runtime with DLA Core ID: {dla_core}, available number of DLA cores: "
                    f"{runtime.num_DLA_cores}"
                )
            runtime.DLA_core = dla_core
        if self._version_compatible:
            runtime.engine_host_code_allowed = True
        return runtime


def _dla_core(placement: InstancePlacement) -> int | None:
    """The deep learning accelerator that the instance's group names as its secondary device."""
    return next((device.device_id for device in placement.secondary_devices), None)


def _unbounded(config: ModelConfig) -> frozenset[str]:
    """Inputs whose first dimension is not the batch's."""
    return frozenset(
        [
            *(given.name for given in config.input if given.allow_ragged_batch),
            *(name for made in config.batch_input for name in made.target_name),
        ]
    )
