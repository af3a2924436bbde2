"""A loaded version: its programs, one for each instance, or one for each device where instances share their weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from tpy.backend import HostPolicy, InstancePlacement, ModelContext, ModelInstance, bound, state_specs
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal, Unsupported
from tpy_backends.file_backend import model_file as find_model_file
from tpy_backends.parameter_values import operator_libraries
from tpy_backends.pytorch.archive import FileKind, file_kind
from tpy_backends.pytorch.exported import ExportedProgram
from tpy_backends.pytorch.instance import PyTorchInstance
from tpy_backends.pytorch.names import input_positions, output_positions
from tpy_backends.pytorch.package import PackageProgram
from tpy_backends.pytorch.program import Program, load_failure
from tpy_backends.pytorch.script import ScriptProgram
from tpy_backends.pytorch.settings import RUNTIME, PyTorchModelSettings, model_settings, without_meaning
from tpy_backends.pytorch.transfer import DeviceTransfer, HostTransfer, Transfer, torch_device
from tpy_backends.pytorch.validation import validate_inputs, validate_outputs
from tpy_data.backends.states import ImplicitState, StatefulInstance

Log = Callable[[str, str], None]
_Setter = Callable[..., object]

INTEROP_THREADS = "INTER_OP_THREAD_COUNT"
SETTERS: Mapping[str, _Setter] = {
    INTEROP_THREADS: torch.set_num_interop_threads,
    "ENABLE_JIT_EXECUTOR": torch._C._jit_set_profiling_executor,
    "ENABLE_JIT_PROFILING": torch._C._jit_set_profiling_mode,
    "ENABLE_TENSOR_FUSER": torch._C._jit_set_texpr_fuser_enabled,
}


class ProcessSettings:
    """The values that were set, and the models that set them. Any thread."""

    def __init__(self, setters: Mapping[str, _Setter] = SETTERS) -> None:
        self._setters = setters
        self._lock = threading.Lock()
        self._set: dict[str, tuple[object, str]] = {}

    def apply(self, model_name: str, settings: PyTorchModelSettings, log: Log) -> None:
        """Set what the model asks for, unless another model has set it before."""
        wanted: dict[str, object] = dict(settings.jit_switches)
        if settings.interop_threads > 0:
            wanted[INTEROP_THREADS] = settings.interop_threads
        with self._lock:
            for key, value in wanted.items():
                problem = self._apply_one(key, value, model_name)
                if problem:
                    log("warning", f"model '{model_name}': {key} {value} has no effect: {problem}")

    def _apply_one(self, key: str, value: object, model_name: str) -> str:
        """Returns why the value has no effect; empty when it has."""
        if key in self._set:
            first, owner = self._set[key]
            return "" if first == value else f"it holds for the whole process, where model '{owner}' set it to {first}"
        try:
            self._setters[key](value)
        except RuntimeError as error:
            return str(error)
        self._set[key] = (value, model_name)
        return ""


_PROCESS_SETTINGS = ProcessSettings()
"""Those of this process."""


DEFAULT_FILENAME = "model.pt"
PACKAGE_FILENAME = "model.pt2"

_THREADS_DEFAULT = torch.get_num_threads()
"""PyTorch's own choice, before any model has changed it."""


class PyTorchModel:
    """A `LoadedModel`. Modules may keep state, so each instance has its own copy; `ENABLE_WEIGHT_SHARING` says that they do
    not."""

    def __init__(self, context: ModelContext) -> None:
        """Reads no program yet. Raises InvalidArgument for a wrong parameter or a file of another kind, Unavailable for none."""
        self._context = context
        self._settings = model_settings(context.config)
        self._path = model_file(context)
        self._kind = file_kind(self._path)
        self._lock = threading.Lock()
        self._shared: dict[torch.device | None, Program] = {}
        self._first: tuple[torch.device | None, Program] | None = None
        self._positions: tuple[dict[str, int], dict[str, int | str]] | None = None

    def prepare(self) -> None:
        """Load the program that the first instance on no GPU will have, so that a broken model fails here. Raises TpyError."""
        context, config = self._context, self._context.config
        on_gpu = [group.kind is InstanceKind.KIND_GPU for group in config.instance_group]
        _PROCESS_SETTINGS.apply(config.name, self._settings, context.log)
        ignored = without_meaning(config, self._kind, on_gpu=any(on_gpu))
        if ignored:
            context.log(
                "warning", f"model '{config.name}': parameters {', '.join(ignored)} have no effect on this {self._kind.value}"
            )
        if not on_gpu or not all(on_gpu):
            placement = InstancePlacement(name=context.name, kind=InstanceKind.KIND_CPU)
            given = (each for each in context.placements if each.kind is not InstanceKind.KIND_GPU)
            first = next(given, placement)
            program = self.program(first)
            self._places(program)
            if not self._settings.weight_sharing:
                self._first = self._device_of(first), program

    def program(self, placement: InstancePlacement) -> Program:
        """A program for an instance there. Raises TpyError."""
        device = self._device_of(placement)
        if not self._settings.weight_sharing:
            with self._lock:
                if self._first is not None and self._first[0] == device:
                    program, self._first = self._first[1], None
                    return program
            return self._load(device)
        with self._lock:
            if device not in self._shared:
                self._shared[device] = self._load(device)
            return self._shared[device]

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """In the instance's thread. Raises TpyError."""
        config = self._context.config
        with bound(placement.host):
            program = self.program(placement)
        inputs, outputs = self._places(program)
        instance = PyTorchInstance(
            program,
            self._transfer(placement, program),
            config,
            self._settings,
            inputs=inputs,
            outputs=outputs,
            threads=_threads(self._settings, placement.host),
            warn=self._warn,
            devices=self._context.devices,
        )
        specs = state_specs(config)
        return StatefulInstance(instance, ImplicitState(specs, batching=config.max_batch_size > 0)) if specs else instance

    def unload(self) -> None:
        """Let go of all programs."""
        with self._lock:
            self._shared.clear()
            self._first = None

    def _places(self, program: Program) -> tuple[dict[str, int], dict[str, int | str]]:
        """Places the names of the configuration, once for all programs, which are of one file. Raises InvalidArgument when it and
        the model do not fit."""
        with self._lock:
            if self._positions is None:
                config, signature = self._context.config, program.signature
                inputs = input_positions(config, signature, self._warn)
                outputs = output_positions(config, signature, self._warn)
                validate_inputs(config, signature, inputs)
                validate_outputs(config, signature, outputs)
                self._positions = inputs, outputs
            return self._positions

    def _load(self, device: torch.device | None) -> Program:
        name = self._context.config.name
        self._context.log(
            "verbose", f"opening '{self._path}' ({self._kind.value}) for model '{name}' on {device or 'its own devices'}"
        )
        try:
            for library in operator_libraries(self._context):
                torch.ops.load_library(library)
        except OSError as error:
            raise load_failure(name, error) from error
        with torch.inference_mode(self._settings.inference_mode and self._kind is FileKind.TORCH_SCRIPT):
            if self._kind is FileKind.TORCH_SCRIPT:
                return ScriptProgram(self._path, name, device)
            if self._kind is FileKind.EXPORTED_PROGRAM:
                return ExportedProgram(self._path, name, device, self._settings.compile_options)
            return PackageProgram(self._path, name, device)

    def _transfer(self, placement: InstancePlacement, program: Program) -> Transfer:
        if placement.kind is not InstanceKind.KIND_GPU:
            return HostTransfer(copies_outputs=program.keeps_outputs)
        return DeviceTransfer(
            self._context.devices,
            placement.device_id,
            cudnn=self._settings.cudnn,
            cleans_cache=self._settings.cache_cleaning,
            copies_outputs=program.keeps_outputs,
        )

    def _device_of(self, placement: InstancePlacement) -> torch.device | None:
        """None for an instance of KIND_MODEL, whose model knows best. Raises Unsupported for a GPU that PyTorch cannot use,
        Unavailable for one that the server cannot."""
        if placement.kind is InstanceKind.KIND_MODEL:
            return None
        if placement.kind is InstanceKind.KIND_CPU:
            return torch.device("cpu")
        if placement.device_id not in self._context.devices.ids:
            _require_cuda(placement)
        device = torch_device(self._context.devices.get(placement.device_id))
        if device.type == "cuda":
            _require_cuda(placement)
        return device

    def _warn(self, text: str) -> None:
        self._context.log("warning", text)


def model_file(context: ModelContext) -> Path:
    """The file to load: `default_model_filename`, or the other of model.pt and model.pt2. Raises TpyError."""
    return find_model_file(context, (DEFAULT_FILENAME, PACKAGE_FILENAME), advice=_advice)


def _advice(names: Sequence[str]) -> str:
    return f'add `runtime: "{RUNTIME}"` to config.pbtxt to serve the class in it' if RUNTIME in names else ""


def _require_cuda(placement: InstancePlacement) -> None:
    """Raises Unsupported without a CUDA device, Internal for one that PyTorch does not find."""
    if not torch.cuda.is_available():
        raise Unsupported(
            f"GPU instances not supported: the installed PyTorch ({torch.__version__}) finds no CUDA device; install a "
            f"build of PyTorch for CUDA, or place the model on the CPU (instance_group with kind: KIND_CPU)"
        )
    if placement.device_id >= torch.cuda.device_count():
        raise Internal(
            f"PyTorch finds {torch.cuda.device_count()} CUDA devices, instance '{placement.name}' wants {placement.device_id}"
        )


def _threads(settings: PyTorchModelSettings, host: HostPolicy) -> int:
    """Threads that share the work of one operator: as many as were asked for, else one for each core that the instance may
    use."""
    return settings.intraop_threads or len(host.cpu_cores) or _THREADS_DEFAULT
