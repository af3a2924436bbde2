"""Auto-completion: what an exported program says of its inputs, outputs and batches. Triton completes nothing of PyTorch's
models."""

from __future__ import annotations

import msgspec

from tpy.backend import state_specs
from tpy.config import ModelConfig
from tpy.config.model_config import DynamicBatching, ModelInput, ModelOutput, TensorReshape
from tpy.errors import InvalidArgument
from tpy.messages import DataType
from tpy_data.backends.pytorch.names import input_positions, output_positions
from tpy_data.backends.pytorch.signature import Argument, Result, Signature, ValueKind

DEFAULT_MAX_BATCH_SIZE = 4
"""Of the `default-max-batch-size` setting, as for ONNX models."""


def is_complete(config: ModelConfig) -> bool:
    """True when there is nothing to fill in: at least one input and one output are listed; a partial list stays as it is."""
    return bool(config.input or config.batch_input) and bool(config.output)


def complete(config: ModelConfig, signature: Signature, *, default_max_batch_size: int) -> ModelConfig:
    """Fill in the batch size, a batcher, and whichever of the lists of inputs and outputs is empty.

    Raises InvalidArgument where the file does not say enough, and for a max_batch_size on a model that does not batch.
    """
    if is_complete(config):
        return config
    if not signature.is_described:
        raise InvalidArgument(
            f"model '{config.name}': its configuration must list inputs and outputs with data_type and dims, because its "
            f"file does not tell them; it says {signature.text()}"
        )
    config = _with_batching(config, signature, default_max_batch_size)
    batches = config.max_batch_size > 0
    if not (config.input or config.batch_input):
        made = input_positions(config, signature).values()
        inputs = tuple(
            _input(argument, batches=batches) for position, argument in enumerate(signature.inputs) if position not in made
        )
        config = msgspec.structs.replace(config, input=inputs)
    if not config.output:
        kept = {name: output_positions(config, signature)[name] for name in (spec.output_name for spec in state_specs(config))}
        results = signature.outputs or ()
        outputs = tuple(
            _output(result, position, batches=batches) for position, result in enumerate(results) if position not in kept.values()
        )
        config = msgspec.structs.replace(config, output=outputs)
    return config


def _with_batching(config: ModelConfig, signature: Signature, default_max_batch_size: int) -> ModelConfig:
    if not signature.batches:
        if config.max_batch_size != 0:
            raise InvalidArgument(
                f"autofill failed for model '{config.name}': model does not support batching while non-zero max_batch_size is "
                f"specified: {signature.text()}"
            )
        return config
    if config.max_batch_size == 0:
        size = max(default_max_batch_size, 0)
        size = size if signature.batch_max is None else min(size, signature.batch_max)
        config = msgspec.structs.replace(config, max_batch_size=size)
    if config.max_batch_size > 1 and config.sequence_batching is None and config.dynamic_batching is None:
        config = msgspec.structs.replace(config, dynamic_batching=DynamicBatching())
    return config


def _input(argument: Argument, *, batches: bool) -> ModelInput:
    dims, reshape = _dims(argument, batches=batches)
    return ModelInput(
        name=argument.name,
        data_type=argument.datatype or DataType.INVALID,
        dims=dims,
        reshape=reshape,
        optional=argument.kind is ValueKind.TENSOR and not argument.required,
    )


def _output(result: Result, position: int, *, batches: bool) -> ModelOutput:
    dims, reshape = _dims(result, batches=batches)
    return ModelOutput(
        name=result.key or f"OUTPUT__{position}", data_type=result.datatype or DataType.INVALID, dims=dims, reshape=reshape
    )


def _dims(tensor: Argument | Result, *, batches: bool) -> tuple[tuple[int, ...], TensorReshape | None]:
    """The configuration's dims and reshape. Dims may not be empty, so a scalar is [1]; an empty reshape, which says that it is
    none to the model, is legal with a batch dimension only."""
    shape = tensor.shape or ()
    dims = shape[1:] if batches else shape
    if dims:
        return dims, None
    return (1,), TensorReshape(shape=()) if batches else None
