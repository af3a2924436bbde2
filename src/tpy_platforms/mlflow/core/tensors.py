"""Columns as the inputs of a model."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import msgspec
import numpy as np

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.frontends.bytes_tensor import BrokenElements, object_array
from tpy.frontends.http.codec.json_data import read_json_data
from tpy.frontends.http.codec.parameters import own_value
from tpy.limits import MLFLOW_BATCHES_MAX, TENSOR_DIMS_MAX
from tpy.messages import DataType, ModelDescription, ParameterValue, Tensor, TensorDescription
from tpy_platforms.mlflow.core.columns import Columns
from tpy_platforms.mlflow.core.signature import MlflowModel

_FLOATS: Final = (DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64)
_MISSING: Final = frozenset(("", "NA", "NaN", "nan", "N/A", "null", "None"))
"""Cells of a CSV file that pandas reads as a missing number; it writes the first."""
_BOOLEANS: Final = {"true": True, "false": False}


class ModelRequests(msgspec.Struct, frozen=True, kw_only=True):
    """A body as requests to a model, one after another: `batches` are their inputs."""

    batches: Sequence[tuple[Tensor, ...]]
    parameters: Mapping[str, ParameterValue]
    is_frame: bool


def asked_of(columns: Columns, description: ModelDescription, model: MlflowModel) -> ModelRequests:
    """The requests for all rows of `columns`. Raises InvalidArgument with what does not fit."""
    values = _values_by_input(columns, description, model)
    try:
        inputs = tuple(
            _tensor(described, values[described.name], model.kind_of(described.name), is_text=columns.is_text)
            for described in description.inputs
            if described.name in values
        )
    except RecursionError:
        raise InvalidArgument("the values are nested too deeply") from None
    parameters = {name: own_value(name, value) for name, value in columns.parameters.items() if value is not None}
    return ModelRequests(batches=_batches(inputs, description), parameters=parameters, is_frame=columns.is_frame)


def _values_by_input(columns: Columns, description: ModelDescription, model: MlflowModel) -> dict[str, Any]:
    """The values of each input that has some. Raises InvalidArgument."""
    inputs, values = description.inputs, columns.values
    if not isinstance(values, Mapping):
        if len(inputs) != 1:
            raise InvalidArgument(f"the model has {len(inputs)} inputs: name the columns {_names(inputs)}")
        return {inputs[0].name: values}
    required = [each.name for each in inputs if not each.optional]
    if (values.keys() >= set(required) and required) or values.keys() & description.input_by_name.keys():
        missing = [name for name in required if name not in values]
        if missing:
            raise InvalidArgument(f"the model is missing the inputs {', '.join(missing)}, got {_listed(values)}")
        unknown = [name for name in values if name not in description.input_by_name]
        if unknown and not model.inputs:
            raise InvalidArgument(f"unexpected input {echo(unknown[0])}, the model has {_names(inputs)}")
        return {each.name: values[each.name] for each in inputs if each.name in values and not _is_left_out(each, values)}
    if len(inputs) != 1:
        raise InvalidArgument(f"expected the columns {_names(inputs)}, got {_listed(values)}")
    return {inputs[0].name: _matrix(values, model)}


def _is_left_out(described: TensorDescription, values: Mapping[str, Any]) -> bool:
    """Returns True for an optional input without a value in any row."""
    column = values[described.name]
    return described.optional and (column is None or (type(column) is list and all(cell is None for cell in column)))


def _matrix(values: Mapping[str, Any], model: MlflowModel) -> list[Any]:
    """The columns beside each other: those of the signature in its order, otherwise as they are given. Raises InvalidArgument."""
    names = model.columns or tuple(values)
    missing = [name for name in names if name not in values]
    if missing:
        raise InvalidArgument(f"the model is missing the columns {', '.join(map(echo, missing))}, got {_listed(values)}")
    found = [column if type(column := values[name]) is list else [column] for name in names]
    if len({len(column) for column in found}) > 1:
        raise InvalidArgument("the length of values for each column are not the same")
    return [list(row) for row in zip(*found, strict=True)]


def _names(inputs: Sequence[TensorDescription]) -> str:
    return ", ".join(each.name for each in inputs)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(map(echo, list(values)[:20])) or "none"


def _tensor(described: TensorDescription, values: Any, kind: str, *, is_text: bool) -> Tensor:
    """The input of these values. A row of one element may stand without brackets. Raises InvalidArgument."""
    data = values if type(values) is list else [values]
    shape = _shape_of(data)
    if len(shape) > TENSOR_DIMS_MAX:
        raise InvalidArgument("the values are nested too deeply")
    count = prod(shape)
    if not count:
        raise InvalidArgument(f"input '{echo(described.name)}' has no values")
    if len(shape) + 1 == len(described.shape) and described.shape[-1] == 1:
        shape.append(1)
    elif len(shape) == len(described.shape) + 1 and shape[0] == 1:
        del shape[0]
    elements = _elements(described, data, count, kind, is_text=is_text)
    return Tensor(described.name, described.datatype, elements.reshape(shape))


def _shape_of(values: Any) -> list[int]:
    """The lengths of nested lists, by the first of each: what does not agree is refused where the elements are counted."""
    shape: list[int] = []
    while type(values) is list:
        shape.append(len(values))
        values = values[0] if values else None
    return shape


def _elements(described: TensorDescription, data: list[Any], count: int, kind: str, *, is_text: bool) -> np.ndarray[Any, Any]:
    """The elements, flat. Raises InvalidArgument."""
    name, datatype = described.name, described.datatype
    if datatype is DataType.BYTES and kind == "binary":
        return object_array(_decoded(data, name, count), (-1,))
    change = _change(datatype, kind, name, is_text=is_text)
    if change is not None:
        data = _mapped(data, change)
    read_as = DataType.FP32 if datatype in (DataType.FP16, DataType.BF16) else datatype
    try:
        array = read_json_data(data, read_as, count, tensor=name, null_is_nan=True)
    except BrokenElements as error:
        raise InvalidArgument(f"input '{echo(name)}': {error.found}, {error.expected}") from None
    return array if read_as is datatype else array.astype(datatype.numpy)


def _change(datatype: DataType, kind: str, name: str, *, is_text: bool) -> Callable[[Any], Any] | None:
    """Returns the function that changes elements before they are read, None where nothing has to be done."""
    if datatype is DataType.BYTES:
        return _time_of if kind == "datetime" and not is_text else None
    if is_text:
        return lambda cell: _cell(cell, datatype, name)
    return None if datatype in _FLOATS or datatype is DataType.BOOL else _whole


def _mapped(data: list[Any], change: Callable[[Any], Any]) -> list[Any]:
    return [_mapped(value, change) if type(value) is list else change(value) for value in data]


def _whole(value: Any) -> Any:
    """Tables write a column of integers that lacks one as 1.0."""
    return int(value) if type(value) is float and value.is_integer() else value


def _time_of(value: Any) -> Any:
    """Numbers are nanoseconds since 1970."""
    return str(np.datetime64(value, "ns")) if type(value) is int and abs(value) < 2**63 else value


def _cell(cell: str, datatype: DataType, name: str) -> Any:
    """A cell of a CSV file as an element. Raises InvalidArgument."""
    try:
        if datatype in _FLOATS:
            return None if cell in _MISSING else float(cell)
        if datatype is DataType.BOOL:
            return _BOOLEANS[cell.strip().lower()]
        return _whole(float(cell)) if "." in cell else int(cell)
    except (ValueError, KeyError):
        text = f"input '{echo(name)}': the cell '{echo(cell)}' is not of type {datatype.value}"
        raise InvalidArgument(text) from None


def _decoded(data: list[Any], name: str, count: int) -> list[bytes]:
    """The bytes that elements hold in base64, as MLflow has those of binary columns. Raises InvalidArgument."""
    found: list[bytes] = []

    def decode(value: Any) -> None:
        try:
            found.append(base64.b64decode(value, validate=False))
        except (binascii.Error, ValueError, TypeError) as error:
            raise InvalidArgument(f"input '{echo(name)}': expected base64: {error}") from None

    _mapped(data, decode)
    if len(found) != count:
        raise InvalidArgument(f"input '{echo(name)}': expected {count} elements, got {len(found)}")
    return found


def _batches(inputs: tuple[Tensor, ...], description: ModelDescription) -> list[tuple[Tensor, ...]]:
    """The inputs in batches that the model takes. Raises InvalidArgument for too many."""
    most = description.max_batch_size
    counts = {tensor.array.shape[:1] for tensor in inputs}
    if not most or len(counts) != 1:
        return [inputs]
    ((count,),) = counts
    if count > most * MLFLOW_BATCHES_MAX:
        raise InvalidArgument(
            f"{count} rows are more than {MLFLOW_BATCHES_MAX} batches of max_batch_size {most}: send fewer at a time"
        )
    return [
        tuple(Tensor(each.name, each.datatype, each.array[at : at + most]) for each in inputs) for at in range(0, count, most)
    ]
