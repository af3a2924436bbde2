"""Outputs as MLflow writes its predictions: a list of values, rows, records, or columns by name.

MLflow writes whatever the model has returned. What that is depends on the flavour: an estimator returns an array, ONNX a
dictionary or a data frame, a function what its signature says.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.response import dump_json
from tpy.messages import DataType, InferenceResponse, Tensor
from tpy_platforms.mlflow.core.signature import Field, MlflowModel

_ESTIMATORS = frozenset({"sklearn", "xgboost", "lightgbm"})
_FUNCTION = "python_function"
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?")


def encode_predictions(responses: Sequence[InferenceResponse], model: MlflowModel, *, is_frame: bool) -> bytes:
    """The body for the responses to the batches of one request. Raises InvalidArgument for outputs that cannot be joined."""
    outputs = _joined(responses)
    return dump_json({"predictions": _predictions(outputs, model, is_frame=is_frame)})


def _joined(responses: Sequence[InferenceResponse]) -> list[Tensor]:
    first = responses[0].outputs
    if len(responses) == 1:
        return list(first)
    found: list[Tensor] = []
    for tensor in first:
        parts = [each.array for response in responses for each in response.outputs if each.name == tensor.name]
        try:
            found.append(Tensor(tensor.name, tensor.datatype, np.concatenate(parts)))
        except ValueError as error:
            raise InvalidArgument(f"output '{tensor.name}' differs between batches of max_batch_size: {error}") from None
    return found


def _predictions(outputs: Sequence[Tensor], model: MlflowModel, *, is_frame: bool) -> object:
    fields = model.outputs if len(model.outputs) == len(outputs) and model.flavor == _FUNCTION else ()
    values = [_values(tensor, fields[at] if fields else None) for at, tensor in enumerate(outputs)]
    names = [tensor.name for tensor in outputs]
    if fields:
        return _as_signed(fields, names, values)
    if model.flavor == "onnx":
        return _records(names, [_flat(each) for each in values]) if is_frame else dict(zip(names, values, strict=True))
    if len(values) > 1:
        counts = {len(each) if type(each) is list else -1 for each in values}
        return _records(names, values) if len(counts) == 1 and counts != {-1} else dict(zip(names, values, strict=True))
    if model.flavor in _ESTIMATORS:
        return _flat(values[0])
    if model.flavor == "pytorch" and is_frame:
        return [{str(at): value for at, value in enumerate(row if type(row) is list else [row])} for row in values[0]]
    return values[0]


def _as_signed(fields: Sequence[Field], names: Sequence[str], values: list[Any]) -> object:
    """The result of a function by its signature: a data frame if columns have names."""
    flat = [
        _flat(value) if field.shape is None or len(field.shape) == 1 else value
        for field, value in zip(fields, values, strict=True)
    ]
    if not fields[0].name:
        return flat[0] if len(fields) == 1 else _records([str(at) for at in range(len(fields))], flat)
    if fields[0].shape is None:
        return _records(names, flat)
    return dict(zip(names, flat, strict=True))


def _records(names: Sequence[str], columns: list[Any]) -> list[dict[str, Any]]:
    lists = [column if type(column) is list else [column] for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def _flat(values: Any) -> Any:
    """Rows of one value without brackets."""
    if type(values) is list and values and all(type(row) is list and len(row) == 1 for row in values):
        return [row[0] for row in values]
    return values


def _values(tensor: Tensor, field: Field | None) -> Any:
    array = tensor.array
    if tensor.datatype is DataType.BYTES:
        kind = "" if field is None else field.type
        texts = np.empty(array.shape, object)
        texts.reshape(-1)[:] = [_text(element, kind) for element in array.reshape(-1)]
        return texts.tolist()
    if tensor.datatype is DataType.BF16:
        array = array.astype(np.float32)
    return array.tolist()


def _text(element: bytes, kind: str) -> str:
    """Text, or base64 in lines as MLflow writes bytes."""
    if kind != "binary":
        try:
            text = element.decode()
        except UnicodeDecodeError:
            return base64.encodebytes(element).decode("ascii")
        return _time(text) if kind == "datetime" else text
    return base64.encodebytes(element).decode("ascii")


def _time(text: str) -> str:
    """A time as pandas writes it: digits behind the seconds by threes, and none if they are zeros."""
    found = _TIME.fullmatch(text)
    if found is None:
        return text
    digits = (found[3] or "").ljust(9, "0")
    if not int(digits):
        digits = ""
    elif digits.endswith("000"):
        digits = digits[:6]
    return f"{found[1]}T{found[2]}" + (f".{digits}" if digits else "")
