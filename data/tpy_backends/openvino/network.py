"""Reads a file, and gives it the shapes that its configuration wants. The one module beside `tensors` and `program` that touches
OpenVINO."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import openvino

from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput
from tpy.errors import Internal, InvalidArgument, TpyError, Unsupported
from tpy.messages import DataType
from tpy_backends.contents import contents_of
from tpy_backends.openvino.settings import OpenVinoModelSettings, named_by_triton
from tpy_backends.signature import VARIABLE, Signature, TensorInfo

VERSION: Final[str] = openvino.__version__

_DATATYPES: dict[str, DataType] = {
    "boolean": DataType.BOOL,
    "u8": DataType.UINT8,
    "u16": DataType.UINT16,
    "u32": DataType.UINT32,
    "u64": DataType.UINT64,
    "i8": DataType.INT8,
    "i16": DataType.INT16,
    "i32": DataType.INT32,
    "i64": DataType.INT64,
    "f16": DataType.FP16,
    "f32": DataType.FP32,
    "f64": DataType.FP64,
    "bf16": DataType.BF16,
    "string": DataType.BYTES,
}

_SKIP_BATCH = (
    "; where its layers do not allow other batch sizes, SKIP_OV_DYNAMIC_BATCHSIZE: YES runs it with batches of max_batch_size "
    "only (ENABLE_BATCH_PADDING: YES fills smaller ones)"
)


class Network:
    """A file as OpenVINO reads it, with the configuration's batch dimension and shapes."""

    def __init__(self, path: Path, config: ModelConfig, settings: OpenVinoModelSettings) -> None:
        """Raises Internal for a file that is not a model, InvalidArgument for shapes that it cannot take, Unsupported for a type
        that cannot be served."""
        self._core = openvino.Core()
        for library in settings.extensions:
            self._add_operators(library, config)
        try:
            self._model = self._core.read_model(path)
        except Exception as error:
            raise _unreadable(path, config, error) from error
        wanted = {tensor.name for tensor in config.input} | {tensor.name for tensor in config.output}
        self.fixed_batch = config.max_batch_size if config.max_batch_size > 0 and not settings.dynamic_batch else None
        self._inputs = {_name(port, wanted): index for index, port in enumerate(self._model.inputs)}
        self._reshape(config, settings)
        outputs = {_name(port, wanted): index for index, port in enumerate(self._model.outputs)}
        self.output_indices: Mapping[str, int] = outputs
        self.signature = Signature(
            inputs={name: self._info(name, self._model.inputs[index]) for name, index in self._inputs.items()},
            outputs={name: self._info(name, self._model.outputs[index]) for name, index in outputs.items()},
        )

    @property
    def input_indices(self) -> Mapping[str, int]:
        """The position of every input."""
        return self._inputs

    def compiled(self, device: str, properties: Mapping[str, str]) -> tuple[Any, list[str]]:
        """The model made ready for a device, and which properties of Triton's names that device does not know. Raises Internal,
        InvalidArgument for a wrong value."""
        try:
            known = self._core.get_property(device, "SUPPORTED_PROPERTIES")
        except Exception as error:
            devices = ", ".join(self._core.available_devices)
            raise failure(f"device '{device}' cannot be used (OpenVINO finds {devices})", error) from error
        given = {key: value for key, value in properties.items() if known.get(key, "RO") != "RO"}
        ignored = sorted(named_by_triton(properties) - given.keys())
        try:
            return self._core.compile_model(self._model, device, given), ignored
        except Exception as error:
            text = ", ".join(f"{key}={value}" for key, value in given.items())
            raise failure(f"failed to compile the model for {device}" + (f" with {text}" if text else ""), error) from error

    def _add_operators(self, library: str, config: ModelConfig) -> None:
        try:
            self._core.add_extension(library)
        except Exception as error:
            raise failure(
                f"failed to load the library of operators '{library}' of model '{config.name}' (op_library_filename, "
                "CPU_EXTENSION_PATH)",
                error,
            ) from error

    def _reshape(self, config: ModelConfig, settings: OpenVinoModelSettings) -> None:
        """Open the first dimension of models that are to batch, or set it to their one size; with RESHAPE_IO_LAYERS give inputs
        the configuration's dims as well."""
        batch: list[Any] = [] if config.max_batch_size <= 0 else [self.fixed_batch or VARIABLE]
        given = {tensor.name: tensor for tensor in config.input}
        shapes = {}
        for name, index in self._inputs.items():
            now = self._model.inputs[index].partial_shape
            if name in given and (settings.reshapes or now.rank.is_dynamic):  # which the CPU cannot run
                shapes[index] = openvino.PartialShape([*batch, *_dims(given[name])])
            elif batch and not now.rank.is_dynamic and len(now) > 0:
                shapes[index] = openvino.PartialShape([*batch, *list(now)[1:]])
        if not any(shapes[index] != self._model.inputs[index].partial_shape for index in shapes):
            return
        try:
            self._model.reshape(shapes)
        except Exception as error:
            text = f"model '{config.name}' cannot be given the shapes of its configuration"
            advice = _SKIP_BATCH if batch and self.fixed_batch is None else ""
            raise InvalidArgument(f"{text}: {text_of(error)}{advice}") from error

    def _info(self, name: str, port: Any) -> TensorInfo:
        """One that has the only batch size there is counts as one that batches."""
        word = port.element_type.get_type_name()
        datatype = _DATATYPES.get(word)
        if datatype is None:
            raise Unsupported(f"unsupported element type '{word}' of tensor '{name}': the protocol has no such datatype")
        shape = port.partial_shape
        if shape.rank.is_dynamic:
            return TensorInfo(name, datatype, None)
        sizes = [VARIABLE if size.is_dynamic else size.get_length() for size in shape]
        if self.fixed_batch is not None and sizes[:1] == [self.fixed_batch]:
            sizes[0] = VARIABLE
        return TensorInfo(name, datatype, tuple(sizes))


def _name(port: Any, wanted: Collection[str]) -> str:
    """The name that the configuration has for it, where it has several; else the first, or that of the node."""
    names: Sequence[str] = sorted(port.names)
    found = [name for name in names if name in wanted] or names
    return found[0] if found else str(port.node.friendly_name)


def _dims(tensor: ModelInput) -> tuple[int, ...]:
    return tensor.dims if tensor.reshape is None else tensor.reshape.shape


def _unreadable(path: Path, config: ModelConfig, error: Exception) -> TpyError:
    file = path / "saved_model.pb" if path.is_dir() else path
    reason = text_of(error)
    advice = contents_of(file, "openvino") if "weights" not in reason else f"; {path.with_suffix('.bin').name} belongs to it"
    if "Available frontends" in reason and advice:  # it knows as little of the file as its name
        reason = f"OpenVINO {VERSION} does not know its format"
    return Internal(f"openvino error: failed to read '{path.name}' of model '{config.name}': {reason}{advice}")


def text_of(error: Exception) -> str:
    """OpenVINO's message without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(("Exception from", "WARNING:", "E0000")))
    return "memory is short" if text == "std::bad_alloc" else text or "no reason"


def failure(what: str, error: Exception) -> TpyError:
    """Internal with OpenVINO's text."""
    return Internal(f"openvino error: {what}: {text_of(error)}")
