"""Pairs each output of an identity model with the input that it copies."""

from __future__ import annotations

import msgspec

from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput, ModelOutput
from tpy.errors import InvalidArgument
from tpy.messages import DataType

_INPUT = "INPUT"
_OUTPUT = "OUTPUT"


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Output `output` is input `input`; when that is optional and absent, zeros of `datatype` and `absent_shape` (without the
    batch dimension; -1 taken as 1)."""

    input: str
    output: str
    datatype: DataType
    absent_shape: tuple[int, ...]


def pairs_of(config: ModelConfig) -> tuple[Pair, ...]:
    """One pair per output, in the configuration's order. Raises InvalidArgument, with Triton's texts, unless there are as many
    inputs as outputs and every OUTPUT<n> has an INPUT<n> of its datatype and shape."""
    if len(config.input) != len(config.output):
        raise InvalidArgument("model configuration must have equal input/output pairs")
    inputs: dict[str, ModelInput] = {}
    for source in config.input:
        if not source.name.startswith(_INPUT):
            raise InvalidArgument(f"expected input name to follow INPUT<index> pattern, got '{source.name}'")
        inputs[source.name.removeprefix(_INPUT)] = source
    return tuple(_pair(inputs, output) for output in config.output)


def _pair(inputs: dict[str, ModelInput], output: ModelOutput) -> Pair:
    if not output.name.startswith(_OUTPUT):
        raise InvalidArgument(f"expected output name to follow OUTPUT<index> pattern, got '{output.name}'")
    source = inputs.get(output.name.removeprefix(_OUTPUT))
    if source is None:
        raise InvalidArgument("expected input and output indices to match")
    if source.data_type is not output.data_type:
        raise InvalidArgument(
            f"expected input and output datatype to match, got {source.data_type.config_name} and {output.data_type.config_name}"
        )
    shape = _shape(source)
    if shape != _shape(output):
        raise InvalidArgument(f"expected input and output shape to match, got {_text(shape)} and {_text(_shape(output))}")
    return Pair(
        input=source.name, output=output.name, datatype=source.data_type, absent_shape=tuple(max(1, size) for size in shape)
    )


def _shape(tensor: ModelInput | ModelOutput) -> tuple[int, ...]:
    return tensor.dims if tensor.reshape is None else tensor.reshape.shape


def _text(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
