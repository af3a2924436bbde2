"""Does the configuration fit the model? Checked at load, as far as the file says what the model takes and gives."""

from __future__ import annotations

from collections.abc import Mapping

from tpy.backend import control_datatype, state_specs
from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput, ModelOutput
from tpy.errors import InvalidArgument
from tpy.messages import DataType
from tpy_backends.pytorch.signature import ModuleInput, ModuleOutput, ModuleSignature, Shape, ValueKind
from tpy_backends.signature import VARIABLE, shape_text

_INTEGERS = frozenset(
    {
        DataType.INT8,
        DataType.INT16,
        DataType.INT32,
        DataType.INT64,
        DataType.UINT8,
        DataType.UINT16,
        DataType.UINT32,
        DataType.UINT64,
    }
)
_SCALAR_DATATYPES: Mapping[ValueKind, frozenset[DataType]] = {
    ValueKind.INTEGER: _INTEGERS,
    ValueKind.FLOAT: frozenset({DataType.FP32, DataType.FP64}),
    ValueKind.BOOLEAN: frozenset({DataType.BOOL}),
}


def validate_inputs(config: ModelConfig, signature: ModuleSignature, positions: Mapping[str, int]) -> None:
    """Raise InvalidArgument for the first thing that does not fit: number of inputs, kinds, datatypes, shapes."""
    if not signature.takes_dict:
        _validate_count(config, signature, positions)
    if signature.batch_max is not None and signature.batches and config.max_batch_size > signature.batch_max:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration has max_batch_size {config.max_batch_size}, model takes "
            f"at most {signature.batch_max} in the first dimension"
        )
    for given in config.input:
        _validate_strings(config, given, "input")
        if signature.takes_dict:
            continue
        argument = signature.inputs[positions[given.name]]
        if given.optional and argument.required:
            raise InvalidArgument(
                f"unable to load model '{config.name}', input '{given.name}' is optional, but argument '{argument.name}' "
                f"has no default in the model: {signature.text()}"
            )
        _validate_kind(config, given, argument)
        _validate_datatype(config, "input", given.name, given.data_type, argument)
        if not given.allow_ragged_batch and argument.kind is ValueKind.TENSOR:
            _validate_shape(config, "input", given.name, _dims(given), argument)
    if not signature.takes_dict:
        _validate_made(config, signature, positions)


def validate_outputs(config: ModelConfig, signature: ModuleSignature, positions: Mapping[str, int | str]) -> None:
    """The same for outputs."""
    cut = {name for made in config.batch_output for name in made.target_name}
    for wanted in config.output:
        _validate_strings(config, wanted, "output")
        position = positions[wanted.name]
        if signature.outputs is None or isinstance(position, str):
            continue
        result = signature.outputs[position]
        _validate_datatype(config, "output", wanted.name, wanted.data_type, result)
        if wanted.name not in cut:
            _validate_shape(config, "output", wanted.name, _dims(wanted), result)
    for spec in state_specs(config):
        position = positions[spec.output_name]
        if signature.outputs is not None and not isinstance(position, str):
            _validate_datatype(config, "state output", spec.output_name, spec.datatype, signature.outputs[position])


def _dims(tensor: ModelInput | ModelOutput) -> Shape:
    return tensor.dims if tensor.reshape is None else tensor.reshape.shape


def _validate_count(config: ModelConfig, signature: ModuleSignature, positions: Mapping[str, int]) -> None:
    """Every argument without a default is fed."""
    missing = [
        argument.name
        for position, argument in enumerate(signature.inputs)
        if argument.required and position not in positions.values()
    ]
    if missing:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects {len(positions)} inputs, model provides "
            f"{len(signature.inputs)}: {signature.text()}; nothing is given for {', '.join(missing)}"
        )


def _validate_strings(config: ModelConfig, tensor: ModelInput | ModelOutput, word: str) -> None:
    rank = len(_dims(tensor)) + (config.max_batch_size > 0)
    if tensor.data_type is DataType.BYTES and rank > 1:
        raise InvalidArgument(
            f"Triton only supports 1 dimensional List of String as {word} for '{tensor.name}' for model '{config.name}'"
        )


def _validate_kind(config: ModelConfig, given: ModelInput, argument: ModuleInput) -> None:
    kind = argument.kind
    if kind is ValueKind.TENSOR:
        fits = given.data_type is not DataType.BYTES
    elif kind is ValueKind.STRINGS:
        fits = given.data_type is DataType.BYTES
    else:
        fits = given.data_type in _SCALAR_DATATYPES[kind]
    if not fits:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects datatype {given.data_type.config_name} for input "
            f"'{given.name}', model provides {kind.value} {argument.name}"
        )


def _validate_datatype(config: ModelConfig, word: str, name: str, datatype: DataType, tensor: ModuleInput | ModuleOutput) -> None:
    if tensor.datatype is not None and tensor.datatype is not datatype:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects datatype {datatype.config_name} for {word} "
            f"'{name}', model provides {tensor.datatype.config_name}"
        )


def _validate_shape(config: ModelConfig, word: str, name: str, dims: Shape, tensor: ModuleInput | ModuleOutput) -> None:
    if tensor.shape is None:
        return
    batches = config.max_batch_size > 0
    if batches and tensor.shape[:1] != (VARIABLE,):
        raise InvalidArgument(
            f"model '{config.name}', tensor '{name}': for the model to support batching the shape should have at least 1 "
            f"dimension and the first dimension must be -1; but shape expected by the model is {shape_text(tensor.shape)}"
        )
    wanted = (VARIABLE, *dims) if batches else dims
    if not batches and not tensor.shape and all(size == 1 for size in dims):
        return  # a scalar, which a configuration can only call [1]
    if len(wanted) != len(tensor.shape) or any(
        have not in (VARIABLE, want) and not (want == VARIABLE and word == "output")
        for have, want in zip(tensor.shape, wanted, strict=True)
    ):
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects shape {shape_text(wanted)} for {word} '{name}', model "
            f"provides {shape_text(tensor.shape)}"
        )


def _validate_made(config: ModelConfig, signature: ModuleSignature, positions: Mapping[str, int]) -> None:
    """Control tensors and states, which are arguments of the model like any other."""
    controls = config.sequence_batching.control_input if config.sequence_batching is not None else ()
    for entry in controls:
        for control in entry.control:
            argument = signature.inputs[positions[entry.name]]
            given = ModelInput(name=entry.name, data_type=control_datatype(control), dims=(1,))
            _validate_kind(config, given, argument)
            _validate_datatype(config, "sequence control input", entry.name, given.data_type, argument)
    for spec in state_specs(config):
        argument = signature.inputs[positions[spec.input_name]]
        _validate_kind(config, ModelInput(name=spec.input_name, data_type=spec.datatype, dims=spec.dims), argument)
        _validate_datatype(config, "state input", spec.input_name, spec.datatype, argument)
        _validate_shape(config, "state input", spec.input_name, spec.dims, argument)
