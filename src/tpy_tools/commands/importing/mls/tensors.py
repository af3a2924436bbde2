"""Tensors of Triton as messages of MLServer, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .codecs.numpy import NUMPY_TYPES
from .types import InferenceRequest, InferenceResponse, Parameters, RequestInput, RequestOutput, TensorData


def request_of(
    inputs: Mapping[str, np.ndarray[Any, Any]],
    datatypes: Mapping[str, str],
    *,
    request_id: str,
    parameters: str,
    outputs: Iterable[str],
) -> InferenceRequest:
    """A request of arrays by name. `parameters` is a JSON object, in which tpy has content types of inputs as
    `NAME.content_type`; no `outputs`: the caller names none."""
    said: dict[str, Any] = json.loads(parameters or "{}")
    kinds = {name: said.pop(f"{name}.content_type", None) for name in inputs}
    names = [RequestOutput(name=name) for name in outputs]
    return InferenceRequest(
        id=request_id,
        parameters=Parameters(**{"headers": {}, **said}),  # MLServer always has some
        inputs=[
            RequestInput(
                name=name,
                shape=array.shape,
                datatype=datatypes[name],
                data=_data(array),
                **({"parameters": Parameters(content_type=kinds[name])} if kinds[name] else {}),
            )
            for name, array in inputs.items()
        ],
        outputs=names or None,
    )


def _data(array: np.ndarray[Any, Any]) -> TensorData:
    """Numbers as they are; BYTES as texts, as they are in JSON, unless one of them is not text."""
    if array.dtype != np.object_:
        return TensorData(array=array)
    elements: list[bytes] = array.ravel().tolist()
    try:
        return TensorData([each.decode() for each in elements])
    except UnicodeDecodeError:
        return TensorData(elements)


def arrays_of(response: InferenceResponse) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of a response by name. Raises ValueError for data that are not what datatype and shape say."""
    return {output.name: array_of(output) for output in response.outputs}


def array_of(output: RequestInput) -> np.ndarray[Any, Any]:
    """The elements as Triton wants them. Raises ValueError."""
    shape = tuple(output.shape)
    if output.datatype == "BYTES":
        elements = _flat(output.data.root)
        array: np.ndarray[Any, Any] = np.empty(len(elements), object)
        array[:] = [each.encode() if isinstance(each, str) else bytes(each) for each in elements]
        if len(elements) == 1 and len(shape) == 1:
            shape = (1,)  # in MLServer's own examples the shape of a text is the number of its bytes
    else:
        held = output.data.array
        array = np.asarray(output.data.root if held is None else held, NUMPY_TYPES[output.datatype])
    try:
        return array.reshape(shape)
    except ValueError:
        raise ValueError(f"output '{output.name}' has {array.size} elements, and the shape {output.shape}") from None


def _flat(elements: Any) -> list[Any]:
    """Nested lists and arrays as one list; a single element as a list of it."""
    if isinstance(elements, np.ndarray):
        elements = elements.tolist()
    if not isinstance(elements, list):
        return [elements]
    if any(isinstance(each, list) for each in elements):
        return [inner for each in elements for inner in _flat(each)]
    return elements
