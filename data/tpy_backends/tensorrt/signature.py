"""The inputs, outputs and optimization profiles of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from tpy.messages import DataType
from tpy_backends.tensorrt.library import Library

Shape = tuple[int, ...]

DATATYPES = {
    "FLOAT": DataType.FP32,
    "HALF": DataType.FP16,
    "BF16": DataType.BF16,
    "INT8": DataType.INT8,
    "UINT8": DataType.UINT8,
    "INT32": DataType.INT32,
    "INT64": DataType.INT64,
    "BOOL": DataType.BOOL,
}
"""By the name of TensorRT's type; types of fewer than 8 bits, and FP8, are missing here."""


class EngineTensor(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output. `shape` counts the batch dimension, and has -1 for what is not fixed.

    A shape tensor is one whose values decide about shapes; they are in host memory. `tensor_format` is LINEAR for a tensor that
    lies in memory row by row.
    """

    name: str
    datatype: DataType
    type_name: str
    shape: Shape
    is_shape_tensor: bool = False
    tensor_format: str = "LINEAR"


class Extent(NamedTuple):
    """The smallest, the best and the largest that a profile takes: shapes, or values of a shape tensor."""

    smallest: Shape
    best: Shape
    largest: Shape


class OptimizationProfile(msgspec.Struct, frozen=True, kw_only=True):
    """An optimization profile: the shapes of all inputs and the values of shape tensors, by name."""

    index: int
    shapes: Mapping[str, Extent]
    values: Mapping[str, Extent]


class EngineSignature(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of an engine by name, in its order, and its profiles by index."""

    inputs: Mapping[str, EngineTensor]
    outputs: Mapping[str, EngineTensor]
    profiles: tuple[OptimizationProfile, ...]


def read_signature(library: Library, engine: Any) -> EngineSignature:
    """Ask an engine."""
    inputs: dict[str, EngineTensor] = {}
    outputs: dict[str, EngineTensor] = {}
    for position in range(engine.num_io_tensors):
        name = engine.get_tensor_name(position)
        is_input = engine.get_tensor_mode(name) == library.TensorIOMode.INPUT
        type_name = engine.get_tensor_dtype(name).name
        info = EngineTensor(
            name=name,
            datatype=DATATYPES.get(type_name, DataType.INVALID),
            type_name=type_name,
            shape=_shape(engine.get_tensor_shape(name)),
            is_shape_tensor=engine.is_shape_inference_io(name),
            tensor_format=engine.get_tensor_format(name).name,
        )
        (inputs if is_input else outputs)[name] = info
    profiles = tuple(_profile(engine, index, inputs) for index in range(engine.num_optimization_profiles))
    return EngineSignature(inputs=inputs, outputs=outputs, profiles=profiles)


def _profile(engine: Any, index: int, inputs: Mapping[str, EngineTensor]) -> OptimizationProfile:
    values = {
        # Its arguments are in this order, whatever their names in the documentation.
        name: _extent(engine.get_tensor_profile_values(index, name))
        for name, info in inputs.items()
        if info.is_shape_tensor
    }
    shapes = {name: _extent(engine.get_tensor_profile_shape(name, index)) for name in inputs}
    return OptimizationProfile(index=index, shapes=shapes, values=values)


def _extent(triple: Any) -> Extent:
    return Extent(*(_shape(each) for each in triple)) if len(triple) else Extent((), (), ())


def _shape(dims: Any) -> Shape:
    return tuple(int(size) for size in dims)
