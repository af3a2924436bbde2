"""The openvino backend. A loaded version has a compiled model per device and host policy, and an infer request per instance."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino

from tpy.backend import BackendCapabilities, BackendSettings, HostPolicy, InstancePlacement, ModelContext, ModelInstance, bound
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal
from tpy.messages import DataType
from tpy_backends.completion import default_max_batch_size
from tpy_backends.file_backend import FileBackend, model_path
from tpy_backends.named_tensors import Array, named_instance
from tpy_backends.openvino.network import VERSION, Network, failure
from tpy_backends.openvino.settings import model_settings
from tpy_backends.parameter_values import operator_libraries
from tpy_backends.signature import Signature
from tpy_backends.validation import validate, warn_of_outputs_left_out

_BF16 = DataType.BF16.numpy
_BYTES = DataType.BYTES.numpy
_COPIED_BYTES_MAX = 4096
"""Arrays up to this size are copied, which takes less time than to lend them."""


def to_runtime(array: Array) -> Any:
    """A value for an infer request, over the array's own memory wherever possible."""
    if array.dtype == _BYTES:
        return _strings(array)
    if not (array.ndim and array.flags.c_contiguous and array.flags.aligned):
        array = array.copy(order="C")
    if array.dtype == _BF16:
        return openvino.Tensor(_lent(array.view(np.uint16)), openvino.Shape(array.shape), openvino.Type.bf16)
    return _lent(array) if array.nbytes > _COPIED_BYTES_MAX else array


def from_runtime(array: Array, datatype: DataType) -> Array:
    """A copy of an output: the next run writes over its memory."""
    copied: Array = array.copy()
    return copied.view(_BF16) if datatype is DataType.BF16 else copied  # OpenVINO calls them float16


def from_strings(tensor: Any) -> Array:
    """The BYTES of an output. Each ends at its last byte that is not zero, as in numpy's fixed width, by which OpenVINO gives
    them."""
    fixed = tensor.bytes_data
    elements: list[bytes] = fixed.ravel().tolist()
    if fixed.itemsize == 1:  # where all strings are empty, the one byte that numpy has at least holds anything
        elements = [element if text else b"" for element, text in zip(elements, tensor.str_data.ravel().tolist(), strict=True)]
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(fixed.shape)


def _strings(array: Array) -> Any:
    if not array.size:
        return np.empty(array.shape, "S1")
    tensor = openvino.Tensor(array.ravel().tolist())
    tensor.shape = openvino.Shape(array.shape)
    return tensor


class _Memory:
    """Lends numpy the memory of an array that is read-only, as if it were not, and keeps it alive meanwhile."""

    def __init__(self, array: Array) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _lent(array: Array) -> Array:
    """OpenVINO copies arrays that are not writable. It does not write to inputs."""
    return array if array.flags.writeable else np.asarray(_Memory(array))


class _InferRequest:
    """A `NamedProgram`. Variables of the network (its state between runs) are reset before each run: one run has requests of
    many callers."""

    def __init__(self, compiled: Any, network: Network, *, pads: bool) -> None:
        """Raises Internal."""
        try:
            self._request = compiled.create_infer_request()
            self._remembers = bool(self._request.query_state())
        except Exception as error:
            raise failure("failed to create an infer request", error) from error
        self._inputs = network.input_indices
        self._outputs = {
            name: (index, network.signature.outputs[name].datatype) for name, index in network.output_indices.items()
        }
        self._lends = all(datatype is not DataType.BYTES for _, datatype in self._outputs.values())  # strings it only copies
        self._fixed_batch = network.fixed_batch
        self._pads = pads

    def run(self, feed: Mapping[str, Array], names: Sequence[str]) -> Sequence[Array]:
        """As `NamedProgram`."""
        rows = self._fixed_batch
        if rows is not None:
            rows = next((array.shape[0] for array in feed.values()), rows)
            feed = self._filled(feed, rows)
        inputs = self._inputs
        try:
            if self._remembers:
                self._request.reset_state()
            values = {inputs[name]: to_runtime(array) for name, array in feed.items()}
            made = self._request.infer(values, share_inputs=True, share_outputs=self._lends, decode_strings=False)
            arrays = [
                from_strings(self._request.get_output_tensor(index))
                if datatype is DataType.BYTES
                else from_runtime(made[index], datatype)
                for index, datatype in map(self._outputs.__getitem__, names)
            ]
        except Exception as error:
            raise failure("running inference", error) from error
        return arrays if rows is None else [array[:rows] for array in arrays]

    def close(self) -> None:
        """As `NamedProgram`: the request is the instance's alone, and the compiled model is the model's."""

    def _filled(self, feed: Mapping[str, Array], rows: int) -> Mapping[str, Array]:
        """The batch with rows of zeros behind it, where the model takes batches of one size only."""
        size = self._fixed_batch or rows
        if rows == size:
            return feed
        if not self._pads:
            raise Internal(
                f"expected requests with batch size '{size}', got '{rows}'... this error can be avoided by setting "
                "'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance cost."
            )
        return {
            name: np.concatenate([array, np.zeros((size - rows, *array.shape[1:]), array.dtype)]) for name, array in feed.items()
        }


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
        device = self._settings.device or _device_of(placement)
        any_thread = device == "CPU" and not self._settings.extensions
        request = _InferRequest(self.compiled_for(placement), self._network, pads=self._settings.batch_padding)
        return named_instance(request, self._network.signature, self._context.config, any_thread=any_thread)

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


def openvino_backend(settings: BackendSettings) -> FileBackend:
    """Raises InvalidArgument for a bad `--backend-config` value."""
    devices = {InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}
    if any(device.startswith("GPU") for device in openvino.Core().available_devices):
        devices.add(InstanceKind.KIND_GPU)
    capabilities = BackendCapabilities(
        name=settings.name,
        default_model_filename=FILENAMES[0],
        devices=frozenset(devices),
        implicit_state=True,
        ragged=True,
        batch_io=True,
        version=VERSION,
    )
    return FileBackend(capabilities, OpenVinoModel, default_max_batch_size=default_max_batch_size(settings.config))
