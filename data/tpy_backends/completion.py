"""Auto-completion: what Triton's backends for ONNX, OpenVINO and TensorFlow fill in from the signature of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tpy.backend import state_specs
from tpy.config import ModelConfig
from tpy.config.model_config import DynamicBatching, ModelInput, ModelOutput, TensorReshape
from tpy.errors import InvalidArgument
from tpy_backends.parameter_values import parse_integer
from tpy_backends.signature import Signature, TensorInfo, shape_text
from tpy_backends.validation import FIXED_BATCH

DEFAULT_MAX_BATCH_SIZE = 4
"""Triton's default of the `default-max-batch-size` setting."""


def default_max_batch_size(pairs: Mapping[str, str]) -> int:
    """Returns the setting, of the `--backend-config` pairs. Raises InvalidArgument."""
    return parse_integer(pairs.get("default-max-batch-size", str(DEFAULT_MAX_BATCH_SIZE)))


def is_complete(config: ModelConfig) -> bool:
    """Returns True if at least one input and one output are listed: a partial list is not completed."""
    return bool(config.input or config.batch_input) and bool(config.output)


def with_batching(config: ModelConfig, largest: int) -> ModelConfig:
    """Returns the configuration of a model that batches: with `largest` for a batch size that is not set, and a batcher."""
    if config.max_batch_size == 0:
        config = msgspec.structs.replace(config, max_batch_size=max(largest, 0))
    if config.max_batch_size > 1 and config.sequence_batching is None and config.dynamic_batching is None:
        config = msgspec.structs.replace(config, dynamic_batching=DynamicBatching())
    return config


def without_batching(config: ModelConfig, why: str) -> ModelConfig:
    """Returns the configuration of a model that does not batch, for the reason `why`. Raises InvalidArgument where it says that
    it does."""
    if config.max_batch_size != 0:
        raise InvalidArgument(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero max_batch_size is "
            f"specified{why}"
        )
    return config


def made_by_server(config: ModelConfig) -> set[str]:
    """Inputs that no request has: control tensors and states of sequences, and tensors of batch_input."""
    controls = config.sequence_batching.control_input if config.sequence_batching is not None else ()
    return (
        {control.name for control in controls}
        | {spec.input_name for spec in state_specs(config)}
        | {name for made in config.batch_input for name in made.target_name}
    )


def dims_of(shape: Sequence[int], *, batches: bool) -> tuple[tuple[int, ...], TensorReshape | None]:
    """Returns the configuration's dims and reshape. Dims may not be empty, so a scalar is [1]; an empty reshape, which makes it a
    scalar for the model, is legal with a batch dimension only."""
    dims = tuple(shape[1:] if batches else shape)
    if dims:
        return dims, None
    return (1,), TensorReshape(shape=()) if batches else None


def complete(config: ModelConfig, signature: Signature, *, default_max_batch_size: int) -> ModelConfig:
    """Fill in the batch size, a batcher, and whichever of the lists of inputs and outputs is empty.

    Raises InvalidArgument for a max_batch_size on a model that does not batch, and for tensors of unknown rank.
    """
    if is_complete(config):
        return config
    unknown = [info.name for info in (*signature.inputs.values(), *signature.outputs.values()) if info.shape is None]
    if unknown:
        raise InvalidArgument(
            f"unable to autofill for '{config.name}': the model does not say how many dimensions {', '.join(unknown)} "
            f"{'has' if len(unknown) == 1 else 'have'}; list the inputs and outputs with their dims in config.pbtxt"
        )
    if signature.batches:
        config = with_batching(config, default_max_batch_size)
    else:
        config = without_batching(config, f"; the first dimension is not variable in {_fixed(signature)}{FIXED_BATCH}")
    batches = config.max_batch_size > 0
    if not (config.input or config.batch_input):
        made = made_by_server(config)
        inputs = tuple(_input(info, batches=batches) for name, info in signature.inputs.items() if name not in made)
        config = msgspec.structs.replace(config, input=inputs)
    if not config.output:
        kept = {spec.output_name for spec in state_specs(config)}
        outputs = tuple(_output(info, batches=batches) for name, info in signature.outputs.items() if name not in kept)
        config = msgspec.structs.replace(config, output=outputs)
    return config


def _fixed(signature: Signature) -> str:
    infos = (*signature.inputs.values(), *signature.outputs.values())
    return ", ".join(f"'{info.name}' {shape_text(info.shape)}" for info in infos if not info.batches)


def _input(info: TensorInfo, *, batches: bool) -> ModelInput:
    dims, reshape = dims_of(info.shape or (), batches=batches)
    return ModelInput(name=info.name, data_type=info.datatype, dims=dims, reshape=reshape)


def _output(info: TensorInfo, *, batches: bool) -> ModelOutput:
    dims, reshape = dims_of(info.shape or (), batches=batches)
    return ModelOutput(name=info.name, data_type=info.datatype, dims=dims, reshape=reshape)
