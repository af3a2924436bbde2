"""Does the configuration fit the engine? Checked at load, with the texts of Triton's tensorrt backend."""

from __future__ import annotations

from collections.abc import Mapping

from tpy.backend import BATCH_INPUT_RANKS, control_datatype, state_specs
from tpy.config import ModelConfig
from tpy.config.model_config import BatchOutputKind, ModelInput, ModelOutput
from tpy.errors import InvalidArgument, Unsupported
from tpy.messages import DataType
from tpy_backends.signature import VARIABLE, shape_text
from tpy_backends.tensorrt.signature import EngineSignature, EngineTensor, Shape

_SHAPE_DATATYPES = (DataType.INT32, DataType.INT64)


def validate(config: ModelConfig, signature: EngineSignature) -> None:
    """Raise InvalidArgument, or Unsupported, for the first thing that does not fit."""
    check_names(config, signature)
    batches = config.max_batch_size > 0
    fed: dict[str, EngineTensor] = {}
    for given in config.input:
        if given.optional:
            raise InvalidArgument(
                f"unable to load model '{config.name}', optional input '{given.name}' is not supported: an engine takes all "
                "of its "
                "inputs"
            )
        info = _claim(config, fed, signature.inputs, given.name)
        _check_tensor(config, given, info, word="input")
        if given.allow_ragged_batch:
            _check_ragged(config, given, info)
        elif info.is_shape_tensor:
            _check_shape_tensor(config, given, info, word="input", batches=batches)
        else:
            _check_dims(config, given.name, info.shape, _dims(given), batches=batches)
    _validate_made(config, fed, signature)
    missing = [name for name in signature.inputs if name not in fed]
    if missing:
        raise InvalidArgument(f"expected configuration for input '{missing[0]}' for {config.name}")
    _validate_outputs(config, signature)


def check_names(config: ModelConfig, signature: EngineSignature) -> None:
    """Raise InvalidArgument for a tensor that the engine has not."""
    if len(config.input) > len(signature.inputs):
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects {len(config.input)} inputs, model provides at most "
            f"{len(signature.inputs)}"
        )
    for given in config.input:
        if given.name not in signature.inputs:
            raise InvalidArgument(f"unexpected inference input '{given.name}', allowed inputs are: {_names(signature.inputs)}")
    for wanted in config.output:
        if wanted.name not in signature.outputs:
            raise InvalidArgument(
                f"unexpected inference output '{wanted.name}', allowed outputs are: {_names(signature.outputs)}"
            )


def _names(tensors: Mapping[str, EngineTensor]) -> str:
    return ", ".join(sorted(tensors))


def _dims(tensor: ModelInput | ModelOutput) -> tuple[int, ...]:
    return tensor.dims if tensor.reshape is None else tensor.reshape.shape


def _claim(config: ModelConfig, fed: dict[str, EngineTensor], inputs: Mapping[str, EngineTensor], name: str) -> EngineTensor:
    info = inputs.get(name)
    if info is None:
        raise InvalidArgument(f"input '{name}' not found for {config.name}; the engine has {_names(inputs)}")
    if name in fed:
        raise InvalidArgument(f"input '{name}'  has already appeared as an input or output for {config.name}")
    fed[name] = info
    return info


def _validate_made(config: ModelConfig, fed: dict[str, EngineTensor], signature: EngineSignature) -> None:
    """Inputs that the server makes: control tensors, states, and those of `batch_input`."""
    batches = config.max_batch_size > 0
    sequences = config.sequence_batching
    for entry in sequences.control_input if sequences is not None else ():
        info = _claim(config, fed, signature.inputs, entry.name)
        for control in entry.control:
            _check_datatype(config, entry.name, control_datatype(control), info, word="input")
        _check_dims(config, entry.name, info.shape, (1,), batches=batches)
    for spec in state_specs(config):
        info = _claim(config, fed, signature.inputs, spec.input_name)
        _check_datatype(config, spec.input_name, spec.datatype, info, word="input")
        _check_dims(config, spec.input_name, info.shape, spec.dims, batches=batches)
    for made in config.batch_input:
        for name in made.target_name:
            info = _claim(config, fed, signature.inputs, name)
            _check_datatype(config, name, made.data_type, info, word="input")
            rank = BATCH_INPUT_RANKS[made.kind]
            if len(info.shape) != rank:
                raise InvalidArgument(
                    f"unable to load model '{config.name}', batch input '{name}' of kind {made.kind.name} has {rank} "
                    f"dimension{'s' * (rank > 1)}, model provides {shape_text(info.shape)}"
                )


def _validate_outputs(config: ModelConfig, signature: EngineSignature) -> None:
    batches = config.max_batch_size > 0
    cut = {name for made in config.batch_output for name in made.target_name}
    for made in config.batch_output:
        if made.kind is not BatchOutputKind.BATCH_SCATTER_WITH_INPUT_SHAPE:
            raise InvalidArgument(
                f"batch output kind other than BATCH_SCATTER_WITH_INPUT_SHAPE is not supported for {made.target_name[0]}"
            )
        for name in made.target_name:
            if signature.outputs[name].is_shape_tensor:
                raise InvalidArgument(f"batch output '{name}' can not be shape binding")
    for wanted in config.output:
        info = signature.outputs[wanted.name]
        _check_tensor(config, wanted, info, word="output")
        if info.is_shape_tensor:
            _check_shape_tensor(config, wanted, info, word="output", batches=batches)
        elif wanted.name not in cut:
            _check_dims(config, wanted.name, info.shape, _dims(wanted), batches=batches)
    for spec in state_specs(config):
        state = signature.outputs.get(spec.output_name)
        if state is None:
            raise InvalidArgument(
                f"output '{spec.output_name}' not found for {config.name}; the engine has {_names(signature.outputs)}"
            )
        _check_datatype(config, spec.output_name, spec.datatype, state, word="output")
        _check_dims(config, spec.output_name, state.shape, spec.dims, batches=batches)


def _check_tensor(config: ModelConfig, tensor: ModelInput | ModelOutput, info: EngineTensor, *, word: str) -> None:
    """Its datatype and its marks."""
    about = f"{word} '{tensor.name}' for model '{config.name}'"
    if tensor.is_shape_tensor is not info.is_shape_tensor:
        if info.is_shape_tensor:
            raise InvalidArgument(f"{about} is a shape tensor but the model configuration doesn't mark it as a shape tensor.")
        raise InvalidArgument(f"{about} is incorrectly marked as a shape tensor in the model configuration.")
    if info.tensor_format != "LINEAR":
        raise Unsupported(
            f"{about} has the format {info.tensor_format} of TensorRT, which tpy does not make: build the engine with linear "
            "inputs and "
            "outputs"
        )
    if tensor.is_non_linear_format_io:
        raise InvalidArgument(
            f"{about} uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to true in the model "
            "configuration."
        )
    _check_datatype(config, tensor.name, tensor.data_type, info, word=word)


def _check_datatype(config: ModelConfig, name: str, datatype: DataType, info: EngineTensor, *, word: str) -> None:
    if datatype is not info.datatype:
        provided = info.datatype.value if info.datatype is not DataType.INVALID else f"{info.type_name} of TensorRT"
        raise InvalidArgument(
            f"unexpected datatype TYPE_{provided} for inference {word} '{name}', expecting {datatype.config_name} for "
            f"{config.name}"
        )


def _check_ragged(config: ModelConfig, given: ModelInput, info: EngineTensor) -> None:
    """The engine gets one flat tensor, whatever the configured dims."""
    if info.is_shape_tensor or info.shape != (VARIABLE,):
        raise InvalidArgument(
            f"model '{config.name}', tensor '{given.name}': for the model to support ragged input, the engine shape is: "
            f"{shape_text(info.shape)} while the model config shape is: {shape_text(given.dims)}"
        )


def _check_shape_tensor(
    config: ModelConfig, tensor: ModelInput | ModelOutput, info: EngineTensor, *, word: str, batches: bool
) -> None:
    """In a model that batches, the engine's has the batch size in front of the values of the configuration's."""
    allowed = _SHAPE_DATATYPES if word == "input" else (DataType.INT64,)
    if tensor.data_type not in allowed:
        expected = " or ".join(each.config_name for each in allowed)
        raise InvalidArgument(
            f"unexpected datatype '{tensor.data_type.config_name} in model configuration for shape {word} '{tensor.name}', "
            "expecting "
            f"{expected} for {config.name}"
        )
    if len(info.shape) > 1:
        raise InvalidArgument(
            f"unable to load model '{config.name}', shape binding '{tensor.name}' can only be 0-d or 1-D tensor, got "
            f"{shape_text(info.shape)}"
        )
    dims = _dims(tensor)
    if dims != tuple(size - batches for size in info.shape):
        raise InvalidArgument(
            f"unable to load model '{config.name}', binding '{tensor.name}' shape expected by framework {shape_text(info.shape)} "
            f"doesn't match model configuration shape {shape_text(dims)}"
        )


def _check_dims(config: ModelConfig, name: str, model: Shape, dims: tuple[int, ...], *, batches: bool) -> None:
    where = f"model '{config.name}', tensor '{name}'"
    if not batches:
        if not _fits(model, dims):
            raise InvalidArgument(
                f"{where}: the model expects {len(model)} dimensions (shape {shape_text(model)}) but the model configuration "
                "specifies "
                f"{len(dims)} dimensions (shape {shape_text(dims)})"
            )
        return
    if not model:
        raise InvalidArgument(
            f"{where}: for the model to support batching the shape should have at least 1 dimension; but shape expected by "
            "the model "
            f"is {shape_text(model)}"
        )
    full = (VARIABLE, *dims)
    if not _fits(model, full):
        raise InvalidArgument(
            f"{where}: the model expects {len(model)} dimensions (shape {shape_text(model)}) but the model configuration "
            "specifies "
            f"{len(full)} dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
            "shape, "
            f"making complete shape {shape_text(full)})"
        )


def _fits(model: Shape, configured: Shape) -> bool:
    return len(model) == len(configured) and all(
        VARIABLE in (size, given) or size == given for size, given in zip(model, configured, strict=True)
    )


def validate_profile(config: ModelConfig, profile: str, count: int) -> int:
    """Returns the index of a profile that an instance group names. Raises InvalidArgument for one that the engine has not."""
    index = int(profile)
    if index >= count:
        raise InvalidArgument(
            f"Can not set the specified optimization profile {profile}[{index}] for {config.name}. Expected optimization "
            "profile index "
            f"range 0-{count - 1}"
        )
    return index
