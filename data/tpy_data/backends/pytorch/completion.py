"""Auto-completion: what an exported program says of its inputs, outputs and batches. Triton completes nothing of PyTorch's
models."""

from __future__ import annotations

import msgspec

from tpy.backend import state_specs
from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput, ModelOutput
from tpy.errors import InvalidArgument
from tpy.messages import DataType
from tpy_data.backends.completion import dims_of, is_complete, with_batching, without_batching
from tpy_data.backends.pytorch.names import input_positions, output_positions
from tpy_data.backends.pytorch.signature import Argument, Result, Signature, ValueKind


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
    if signature.batches:
        largest = default_max_batch_size if signature.batch_max is None else min(default_max_batch_size, signature.batch_max)
        config = with_batching(config, largest)
    else:
        config = without_batching(config, f": {signature.text()}")
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


def _input(argument: Argument, *, batches: bool) -> ModelInput:
    dims, reshape = dims_of(argument.shape or (), batches=batches)
    return ModelInput(
        name=argument.name,
        data_type=argument.datatype or DataType.INVALID,
        dims=dims,
        reshape=reshape,
        optional=argument.kind is ValueKind.TENSOR and not argument.required,
    )


def _output(result: Result, position: int, *, batches: bool) -> ModelOutput:
    dims, reshape = dims_of(result.shape or (), batches=batches)
    return ModelOutput(
        name=result.key or f"OUTPUT__{position}", data_type=result.datatype or DataType.INVALID, dims=dims, reshape=reshape
    )
