"""The JSON of generate and generate_stream: fields to tensors and parameters, and back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from tpy.echo import request_prefix
from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.document import NON_STRING, load_with_names, refuse_type, shown
from tpy.frontends.http.codec.json_data import count_elements, read_json_data
from tpy.frontends.http.codec.parameters import own_value
from tpy.frontends.http.codec.pieces import LongArray, LongString
from tpy.frontends.http.codec.response import generate_document
from tpy.limits import JSON_EXPLAIN_BYTES_MAX
from tpy.messages import (
    DataType,
    InferenceRequest,
    InferenceResponse,
    ModelDescription,
    ParameterValue,
    Tensor,
    TensorDescription,
)
from tpy.messages.allowed import allowed_inputs, tensor_text, with_hint

_PARAMETERS = "parameters"


def parse_generate(
    body: bytes | bytearray | memoryview,
    *,
    description: ModelDescription,
    version: int | None,
    received_ns: int,
    forwarded: Mapping[str, ParameterValue] | None = None,
) -> InferenceRequest:
    """The request in `body`: a member named as an input is that input, `parameters` holds further members, every other one is a
    parameter for the model, `id` too. Nothing here has a meaning to the server but `id`, as in Triton.

    Raises InvalidArgument with Triton's texts (26, 35 and 79, and those of broken JSON and elements).
    """
    document, names = load_with_names(body)
    if type(document) is not dict:
        hint = f"expected an object of names and values, got {shown(document)}"
        raise InvalidArgument(with_hint("attempt to get members for non-object", hint))
    request_id = document.get("id", "")
    if type(request_id) is LongString:
        request_id = request_id.decode()
    if type(request_id) is not str:
        refuse_type("id", NON_STRING, request_id)
    _refuse_repeated(names, description, request_id)
    inputs: dict[str, Tensor] = {}
    parameters: dict[str, ParameterValue] = {}
    for name, value in document.items():
        if name != _PARAMETERS:
            _take(name, value, description, inputs, parameters, request_id)
            continue
        if type(value) is not dict:
            raise InvalidArgument(
                f"Expected JSON object for keyword: '{_PARAMETERS}': attempt to access JSON non-object as object"
            )
        try:
            for inner_name, inner in value.items():
                _take(inner_name, inner, description, inputs, parameters, request_id)
        except InvalidArgument as error:
            raise InvalidArgument(f"Converting keyword: '{_PARAMETERS}': {error}") from None
    return InferenceRequest(
        model_name=description.name,
        model_version=version,
        id=request_id,
        inputs=tuple(inputs.values()),
        parameters={**parameters, **forwarded} if forwarded else parameters,
        received_ns=received_ns,
    )


def encode_generate(response: InferenceResponse, *, rows: bool = False) -> list[bytes | memoryview]:
    """The JSON object for one response, in pieces; with `rows` outputs are nested as their shapes say. Raises its `error` if it
    has one, InvalidArgument for outputs that JSON cannot carry."""
    if response.error is not None:
        raise response.error
    return generate_document(response, rows=rows)


class _Members(list[tuple[str, object]]):
    """An object of a JSON document, with members of the same name."""


def _refuse_repeated(text: bytes, description: ModelDescription, request_id: str) -> None:
    """Raise InvalidArgument for an input that an object of the document has twice. Of such members the parser knows the last
    only, so documents in which the name of an input occurs twice are read again, slowly, up to a size without what is long."""
    if len(text) > JSON_EXPLAIN_BYTES_MAX:
        return
    suspects = [name for name in description.input_by_name if text.count(f'"{name}"'.encode()) > 1]
    if not suspects:
        return
    try:
        document = json.loads(text, object_pairs_hook=_Members)
    except (ValueError, RecursionError):  # what only the other parser takes
        return
    inner = [value for name, value in document if name == _PARAMETERS]
    for members in (document, *inner):
        counts = Counter(name for name, _ in members) if type(members) is _Members else Counter()
        for name in suspects:
            if counts[name] > 1:
                raise InvalidArgument(f"{request_prefix(request_id)}input '{name}' already exists in request")


def _take(
    name: str,
    value: object,
    description: ModelDescription,
    inputs: dict[str, Tensor],
    parameters: dict[str, ParameterValue],
    request_id: str,
) -> None:
    described = description.input_by_name.get(name)
    if described is None:
        try:
            parameters[name] = own_value(name, value)
        except InvalidArgument as error:
            allowed = allowed_inputs((each.name, each.datatype, each.shape) for each in description.inputs)
            raise InvalidArgument(with_hint(str(error), allowed)) from None
    elif name in inputs:
        raise InvalidArgument(f"{request_prefix(request_id)}input '{name}' already exists in request")
    else:
        inputs[name] = _tensor(described, value)


def _tensor(described: TensorDescription, value: object) -> Tensor:
    data: list[Any] | LongArray = [value]
    if type(value) is LongArray or type(value) is list:
        data = value
    elif type(value) is LongString:
        data = [value.decode()]
    rows = _rows_shape(described, data)
    if rows is not None:
        shape, count = rows, prod(rows)
    else:
        count = count_elements(data) if isinstance(data, LongArray) else len(data)
        shape = _shape(described, count, nested=type(data) is list and any(type(element) is list for element in data))
    if count or described.datatype in (DataType.FP16, DataType.BF16):
        array = read_json_data(data, described.datatype, count, tensor=described.name, null_is_nan=True)
    else:
        array = np.empty(0, described.datatype.numpy)
    return Tensor(described.name, described.datatype, array.reshape(shape))


def _rows_shape(described: TensorDescription, data: list[Any] | LongArray) -> tuple[int, ...] | None:
    """The shape that nested lists say themselves, where the input can have it; only the first dimension may be left out. None
    for flat lists and others."""
    if isinstance(data, LongArray):
        head = data.head()
        row: list[int] = _even_shape(head[0]) if len(head) > 1 and type(head[0]) is list else []  # a sole row may be cut
        size = prod(row)
        shape = [count_elements(data) // size, *row] if row and size else []
    else:
        shape = _even_shape(data)
    if len(shape) > 1 and len(shape) + 1 == len(described.shape) and described.shape[0] < 0:
        shape.insert(0, 1)
    is_nested = len(shape) > 1 and len(shape) == len(described.shape)
    fits = is_nested and all(dim in (-1, size) for dim, size in zip(described.shape, shape, strict=True))
    return tuple(shape) if fits else None


def _even_shape(data: list[Any]) -> list[int]:
    """The lengths of nested lists that are as long as their neighbours; [] for others."""
    shape: list[int] = [len(data)]
    while data and type(data[0]) is list:
        if set(map(type, data)) != {list} or len(set(map(len, data))) != 1:
            return []
        shape.append(len(data[0]))
        data = list(chain.from_iterable(data))
    return shape


def _shape(described: TensorDescription, count: int, *, nested: bool) -> tuple[int, ...]:
    """The shape of `count` elements: the innermost variable dimension gets what the fixed ones leave, others are 1."""
    shape = [1 if dim < 0 else dim for dim in described.shape]
    fixed = prod(shape)
    variable = [position for position, dim in enumerate(described.shape) if dim < 0]
    if (fixed == 0 or count % fixed) if variable else count != fixed:
        multiple = " or a multiple of it" if variable and fixed else ""
        hint = f"expected {fixed} elements{multiple} for {tensor_text(described.name, described.datatype, described.shape)}"
        flat = ", whose nesting is not that of the shape" if nested else ""
        text = f"The schema can not convert input '{described.name}' to tensor with proper shape"
        raise InvalidArgument(with_hint(text, f"{hint}, got {count}{flat}"))
    if variable:
        shape[variable[-1]] = count // fixed
    return tuple(shape)
