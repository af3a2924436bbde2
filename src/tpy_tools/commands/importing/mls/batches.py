"""Adaptive batching: requests of one batch as one request, and its response in parts."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from .tensors import array_of
from .types import InferenceRequest, InferenceResponse, RequestInput, ResponseOutput, TensorData


def kind_of(request: InferenceRequest) -> Hashable:
    """Equal for requests that can be one: the same inputs, outputs and parameters."""
    return (
        tuple((each.name, each.datatype, tuple(each.shape[1:]), str(each.parameters)) for each in request.inputs),
        tuple(each.name for each in request.outputs or ()),
        str(request.parameters),
    )


def merged(requests: Sequence[InferenceRequest]) -> InferenceRequest:
    """One request with the rows of all, which are of one kind."""
    first = requests[0]
    inputs = [
        RequestInput(
            name=each.name,
            datatype=each.datatype,
            shape=[sum(request.inputs[at].shape[0] for request in requests), *each.shape[1:]],
            data=_joined([request.inputs[at].data for request in requests]),
            **({"parameters": each.parameters} if each.parameters is not None else {}),
        )
        for at, each in enumerate(first.inputs)
    ]
    found = InferenceRequest(inputs=inputs, outputs=first.outputs)
    if first.parameters is not None:
        found.parameters = first.parameters
    return found


def _joined(parts: Sequence[TensorData]) -> TensorData:
    arrays = [part.array for part in parts if part.array is not None]
    if len(arrays) == len(parts):
        return TensorData(array=np.concatenate(arrays))
    return TensorData([element for part in parts for element in part.root])


def parts_of(response: InferenceResponse, requests: Sequence[InferenceRequest]) -> list[InferenceResponse]:
    """The rows of each request. Raises ValueError for an output with another number of rows."""
    sizes = [request.inputs[0].shape[0] for request in requests]
    ends = list(itertools.accumulate(sizes))
    outputs: list[list[ResponseOutput]] = [[] for _ in requests]
    for output in response.outputs:
        array = array_of(output)
        if array.shape[:1] != (ends[-1],):
            raise ValueError(f"output '{output.name}' has the shape {output.shape}, for {ends[-1]} rows of a batch")
        for at, end in enumerate(ends):
            rows: np.ndarray[Any, Any] = array[end - sizes[at] : end]
            data = TensorData(rows.ravel().tolist()) if output.datatype == "BYTES" else TensorData(array=rows)
            outputs[at].append(ResponseOutput(name=output.name, datatype=output.datatype, shape=rows.shape, data=data))
    return [
        InferenceResponse(
            model_name=response.model_name,
            outputs=each,
            **({"parameters": response.parameters} if response.parameters is not None else {}),
        )
        for each in outputs
    ]
