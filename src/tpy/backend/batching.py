"""Gather the inputs of a batch into one array each, and scatter outputs back to their requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpy.backend.execution import ExecutionRequest, ExecutionResult
from tpy.errors import Internal
from tpy.messages import Tensor


def gather(requests: Sequence[ExecutionRequest]) -> dict[str, np.ndarray[Any, Any]]:
    """One array per input name, requests concatenated along the first dimension, in order.

    A batch of one is not copied. Shapes must agree apart from the first dimension (the engine forms batches so).
    """
    if len(requests) == 1:
        return {name: tensor.array for name, tensor in requests[0].inputs.items()}
    return {name: np.concatenate([request.inputs[name].array for request in requests]) for name in requests[0].inputs}


def scatter(requests: Sequence[ExecutionRequest], outputs: Sequence[Tensor], *, batches: bool) -> list[ExecutionResult]:
    """Cut each output's first dimension by the requests' batch sizes; views, no copies.

    Without batching (`batches` false) there is one request and it gets the outputs whole. Raises Internal when a batched
    output's first dimension is not the batch's size.
    """
    if not batches or len(requests) == 1:
        return [ExecutionResult(outputs)]
    sizes = [request.batch_size for request in requests]
    for tensor in outputs:
        require_rows(tensor, sum(sizes))
    results = []
    begin = 0
    for size in sizes:
        end = begin + size
        results.append(ExecutionResult([Tensor(t.name, t.datatype, t.array[begin:end]) for t in outputs]))
        begin = end
    return results


def require_rows(tensor: Tensor, rows: int) -> None:
    """Raises Internal when an output has not as many rows as the batch."""
    array = tensor.array
    if array.ndim == 0 or array.shape[0] != rows:
        raise Internal(f"output '{tensor.name}' has shape {list(array.shape)}, expected first dimension {rows}: the batch size")


def by_name(outputs: Mapping[str, Tensor], requested: Sequence[str]) -> list[Tensor]:
    """The outputs named in `requested` (all when empty), in that order; missing ones are left out."""
    if not requested:
        return list(outputs.values())
    return [outputs[name] for name in requested if name in outputs]
