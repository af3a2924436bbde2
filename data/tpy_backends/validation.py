"""Does the configuration fit the model? Checked at load, as far as its file describes it, with the texts of Triton's
onnxruntime backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tpy.backend import BATCH_INPUT_RANKS, ModelContext, control_datatype, state_specs
from tpy.config import ModelConfig
from tpy.config.model_config import BatchInput, ModelInput, ModelOutput
from tpy.errors import InvalidArgument
from tpy.messages import DataType
from tpy_backends.signature import VARIABLE, Signature, TensorInfo, shape_text

FIXED_BATCH = "; convert it again with a dynamic first dimension, or set max_batch_size: 0"
"""The next step, behind Triton's texts about models that take batches of one size only."""


def validate(config: ModelConfig, signature: Signature) -> None:
    """Raise InvalidArgument for the first thing that does not fit: number of inputs, names, datatypes, shapes.

    A variable size in the model takes any configured size of an input, but an output must be configured as it is.
    """
    expected = _expected_inputs(config)
    if expected != len(signature.inputs):
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, "
            f"model provides {len(signature.inputs)}"
        )
    inputs = {**signature.inputs, **signature.initializers}
    for given in config.input:
        if given.optional and config.max_batch_size != 0:
            raise InvalidArgument(
                f"unable to load model '{config.name}', optional input '{given.name}' is not supported for models that "
                "support batching"
            )
        if given.name not in inputs:
            raise InvalidArgument(f"unexpected inference input '{given.name}', allowed inputs are: {_names(inputs)}")
        _validate_datatype(config, given, inputs[given.name], word="input")
        if given.allow_ragged_batch:
            _validate_ragged(config, given, inputs[given.name])
        else:
            _validate_sizes(config, given, inputs[given.name], word="input")
    fed = {given.name for given in config.input}
    for made in config.batch_input:
        for name in made.target_name:
            if name in fed:
                raise InvalidArgument(
                    f"unable to load model '{config.name}', batch input '{name}' is fed by another input of that name"
                )
            fed.add(name)
            _validate_batch_input(config, made, name, signature.inputs)
    _validate_sequences(config, signature)
    scattered = {name for made in config.batch_output for name in made.target_name}
    for wanted in config.output:
        if wanted.name not in signature.outputs:
            raise InvalidArgument(
                f"unexpected inference output '{wanted.name}', allowed outputs are: {_names(signature.outputs)}"
            )
        _validate_datatype(config, wanted, signature.outputs[wanted.name], word="output")
        if wanted.name not in scattered:  # its shape is that of the whole batch
            _validate_sizes(config, wanted, signature.outputs[wanted.name], word="output")


def warn_of_outputs_left_out(context: ModelContext, signature: Signature) -> None:
    """Warn of outputs of the model that the configuration does not list: clients cannot ask for them."""
    config = context.config
    known = {wanted.name for wanted in config.output} | {spec.output_name for spec in state_specs(config)}
    left_out = {name: output for name, output in signature.outputs.items() if name not in known}
    if left_out and config.output:
        context.log("warning", left_out_text(config, _names(left_out)))


def left_out_text(config: ModelConfig, names: str) -> str:
    """The warning of outputs with these names that the configuration does not list."""
    return (
        f"model '{config.name}': its configuration leaves out {names}, which the model gives: clients cannot ask for what is "
        "not in it"
    )


def _expected_inputs(config: ModelConfig) -> int:
    """The number of inputs that the configuration feeds, without optional ones, which override an initializer."""
    count = sum(not given.optional for given in config.input) + sum(len(made.target_name) for made in config.batch_input)
    if config.sequence_batching is not None:
        count += len(config.sequence_batching.control_input) + len(config.sequence_batching.state)
    return count


def _validate_sequences(config: ModelConfig, signature: Signature) -> None:
    """Control tensors and states are inputs and outputs of the model like any other; the configuration has them elsewhere."""
    if config.sequence_batching is None:
        return
    for entry in config.sequence_batching.control_input:
        for control in entry.control:
            _validate_made(config, entry.name, control_datatype(control), (1,), signature, word="sequence control input")
    for spec in state_specs(config):
        _validate_made(config, spec.input_name, spec.datatype, spec.dims, signature, word="state input")
        info = signature.outputs.get(spec.output_name)
        if info is None:
            raise InvalidArgument(
                f"unexpected state output '{spec.output_name}', allowed outputs are: {_names(signature.outputs)}"
            )
        output = ModelOutput(name=spec.output_name, data_type=spec.datatype, dims=spec.dims)
        _validate_datatype(config, output, info, word="state output")
        # What the model says of its size may be less than what the configuration does, as long as it fits.
        _validate_sizes(config, output, info, word="input")


def _validate_made(
    config: ModelConfig, name: str, datatype: DataType, dims: tuple[int, ...], signature: Signature, *, word: str
) -> None:
    """An input that the server makes."""
    info = signature.inputs.get(name)
    if info is None:
        raise InvalidArgument(f"unexpected {word} '{name}', allowed inputs are: {_names(signature.inputs)}")
    made = ModelInput(name=name, data_type=datatype, dims=dims)
    _validate_datatype(config, made, info, word=word)
    _validate_sizes(config, made, info, word="input")


def _names(tensors: Mapping[str, TensorInfo]) -> str:
    return ", ".join(sorted(tensors))


def _validate_datatype(config: ModelConfig, tensor: ModelInput | ModelOutput, info: TensorInfo, *, word: str) -> None:
    if tensor.data_type is not info.datatype:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects datatype {tensor.data_type.config_name} for "
            f"{word} '{tensor.name}', model provides TYPE_{info.datatype.value}"
        )


def _validate_ragged(config: ModelConfig, given: ModelInput, info: TensorInfo) -> None:
    """The model gets one flat tensor, whatever the configured dims."""
    if given.optional:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects model provides input with shape [-1] for ragged input "
            f"'{given.name}', which is not supported for optional input"
        )
    if info.shape != (VARIABLE,):
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects model provides input with shape [-1]  for ragged input "
            f"'{given.name}', model provides {shape_text(info.shape)}"
        )


def _validate_batch_input(config: ModelConfig, made: BatchInput, name: str, inputs: Mapping[str, TensorInfo]) -> None:
    """Triton looks at none of this at load; its first request fails."""
    info = inputs.get(name)
    if info is None:
        raise InvalidArgument(f"unexpected inference input '{name}', allowed inputs are: {_names(inputs)}")
    if made.data_type is not info.datatype:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects datatype {made.data_type.config_name} for "
            f"batch input '{name}', model provides TYPE_{info.datatype.value}"
        )
    rank = BATCH_INPUT_RANKS[made.kind]
    if info.shape is not None and len(info.shape) != rank:
        raise InvalidArgument(
            f"unable to load model '{config.name}', batch input '{name}' of kind {made.kind.name} has {rank} "
            f"dimension{'s' * (rank > 1)}, model provides {shape_text(info.shape)}"
        )


def _validate_sizes(config: ModelConfig, tensor: ModelInput | ModelOutput, info: TensorInfo, *, word: str) -> None:
    if info.shape is None:
        return
    dims = tensor.dims if tensor.reshape is None else tensor.reshape.shape
    # Without a declared rank ONNX Runtime shows an output as a scalar too; only running tells. A scalar input cannot batch.
    if info.shape or (word == "input" and config.max_batch_size > 0):
        _validate_shape(config, info.name, info.shape, dims, exact=word == "output")
    elif any(size != 1 for size in dims):
        raise InvalidArgument(
            f"unable to load model '{config.name}', scalar tensor '{tensor.name}', should only provide 1 in the model "
            f"configuration when the model doesn't support batching. Model configuration provided: {shape_text(dims)}."
        )


def _validate_shape(config: ModelConfig, name: str, shape: tuple[int, ...], dims: tuple[int, ...], *, exact: bool) -> None:
    where = f"model '{config.name}', tensor '{name}'"
    if config.max_batch_size <= 0:
        if not _fits(shape, dims, exact=exact):
            raise InvalidArgument(
                f"{where}: the model expects {len(shape)} dimensions (shape {shape_text(shape)}) but the model "
                f"configuration specifies {len(dims)} dimensions (shape {shape_text(dims)})"
            )
        return
    if shape[:1] != (VARIABLE,):
        raise InvalidArgument(
            f"{where}: for the model to support batching the shape should have at least 1 dimension and the first dimension "
            f"must be -1; but shape expected by the model is {shape_text(shape)}{FIXED_BATCH}"
        )
    full = (VARIABLE, *dims)
    if not _fits(shape, full, exact=exact):
        raise InvalidArgument(
            f"{where}: the model expects {len(shape)} dimensions (shape {shape_text(shape)}) but the model "
            f"configuration specifies {len(full)} dimensions (an initial batch dimension because max_batch_size > 0 "
            f"followed by the explicit tensor shape, making complete shape {shape_text(full)})"
        )


def _fits(model: Iterable[int], configured: tuple[int, ...], *, exact: bool) -> bool:
    sizes = tuple(model)
    return len(sizes) == len(configured) and all(
        size == given or (size == VARIABLE and not exact) for size, given in zip(sizes, configured, strict=True)
    )
