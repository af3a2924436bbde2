"""The signature of a model: its inputs and outputs by name, with types and shapes, as far as its file says them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tpy.messages import DataType

VARIABLE = -1
"""The size of a dimension that is named or unknown in the model."""


class TensorInfo(msgspec.Struct, frozen=True):
    """A declared tensor. `shape` is () for scalars and None where the file does not even say how many dimensions there are;
    VARIABLE is any size. ONNX Runtime cannot tell the two apart and has () for both."""

    name: str
    datatype: DataType
    shape: tuple[int, ...] | None

    @property
    def batches(self) -> bool:
        """True if the first dimension is variable, which Triton takes for a batch."""
        return self.shape is not None and self.shape[:1] == (VARIABLE,)


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """In the model's order. `initializers` are inputs with a default value, which a request may override."""

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]
    initializers: Mapping[str, TensorInfo] = msgspec.field(default_factory=dict)

    @property
    def batches(self) -> bool:
        """True if every input and output batches."""
        return all(info.batches for info in (*self.inputs.values(), *self.outputs.values()))


def shape_text(shape: Sequence[int] | None) -> str:
    """As Triton prints shapes: `[-1,3]`."""
    return "of unknown rank" if shape is None else "[" + ",".join(map(str, shape)) + "]"


def tensors_text(tensors: Mapping[str, TensorInfo]) -> str:
    """For messages: `x FP32[-1,3], y INT64[-1]`."""
    return ", ".join(f"{info.name} {info.datatype.value}{shape_text(info.shape)}" for info in tensors.values()) or "none"
