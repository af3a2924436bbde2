"""A loaded version: one compiled model per device and host policy, one infer request per instance."""

from __future__ import annotations

import threading
from typing import Any

from tpy.backend import HostPolicy, InstancePlacement, ModelContext, ModelInstance, bound
from tpy.config.model_config import InstanceKind
from tpy_data.backends.model_file import model_path
from tpy_data.backends.named_tensors import named_instance
from tpy_data.backends.openvino.network import Network
from tpy_data.backends.openvino.program import InferRequest
from tpy_data.backends.openvino.settings import model_settings
from tpy_data.backends.operator_libraries import operator_libraries
from tpy_data.backends.signature import Signature
from tpy_data.backends.validation import validate, warn_of_outputs_left_out

FILENAMES = ("model.xml", "model.onnx", "model.tflite", "model.pdmodel", "model.saved_model", "model.savedmodel")
"""The first is the default; the others are found without being named, too."""

_Key = tuple[str, HostPolicy]


class OpenVinoModel:
    """A `LoadedModel`. Weights are in memory once per device; infer requests of one compiled model run side by side, as many as
    it has streams."""

    def __init__(self, context: ModelContext) -> None:
        """Reads the file. Raises TpyError."""
        config = context.config
        self._context = context
        self._settings = model_settings(config, tuple(operator_libraries(context)))
        self._network = Network(model_path(context, FILENAMES), config, self._settings)
        self._lock = threading.Lock()
        self._compiled: dict[_Key, Any] = {}

    def signature(self) -> Signature:
        """As the file has it."""
        return self._network.signature

    def prepare(self) -> None:
        """Compile for the first instance, so that a model that does not fit fails here. Raises TpyError."""
        validate(self._context.config, self._network.signature)
        warn_of_outputs_left_out(self._context, self._network.signature)
        anywhere = InstancePlacement(name=self._context.name, kind=InstanceKind.KIND_CPU)
        self.compiled_for(next(iter(self._context.placements), anywhere))

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """Raises TpyError."""
        request = InferRequest(self.compiled_for(placement), self._network, pads=self._settings.batch_padding)
        return named_instance(request, self._network.signature, self._context.config)

    def unload(self) -> None:
        """Let go of all compiled models."""
        with self._lock:
            self._compiled.clear()

    def compiled_for(self, placement: InstancePlacement) -> Any:
        """The compiled model for that place; made if it is the first. Raises TpyError."""
        device = self._settings.device or _device_of(placement)
        with self._lock:
            compiled = self._compiled.get((device, placement.host))
            if compiled is None:
                name = self._context.config.name
                self._context.log("verbose", f"compiling model '{name}' for {device}")
                with bound(placement.host):
                    compiled, ignored = self._network.compiled(device, self._properties(device, placement))
                if ignored:
                    self._context.log("warning", f"model '{name}': parameters {', '.join(ignored)} have no effect on {device}")
                self._compiled[device, placement.host] = compiled
            return compiled

    def _properties(self, device: str, placement: InstancePlacement) -> dict[str, str]:
        """Those given, and on a CPU a stream for each instance and the threads of its cores, where nothing else is said."""
        properties = dict(self._settings.properties)
        if device == "CPU":
            count = sum(each.host == placement.host for each in self._context.placements)
            if count > 1 and not {"NUM_STREAMS", "PERFORMANCE_HINT"} & properties.keys():
                properties["NUM_STREAMS"] = str(count)
            if placement.host.cpu_cores:
                properties.setdefault("INFERENCE_NUM_THREADS", str(len(placement.host.cpu_cores)))
        return properties


def _device_of(placement: InstancePlacement) -> str:
    """OpenVINO's name: KIND_MODEL leaves the choice to it."""
    if placement.kind is InstanceKind.KIND_GPU:
        return f"GPU.{placement.device_id}"
    return "AUTO" if placement.kind is InstanceKind.KIND_MODEL else "CPU"
