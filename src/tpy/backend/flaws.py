"""Finds results that a backend may not give."""

from __future__ import annotations

import numpy as np

from tpy.backend.execution import ExecutionResult
from tpy.backend.late_answer import AnswerLater
from tpy.devices import DeviceArray
from tpy.errors import TpyError
from tpy.messages import Residency, Tensor


def flaw_of(result: object, residency: Residency | None = None) -> str | None:
    """The breach of contract in a backend's result, None for none. On the Trio thread it would take the server down."""
    if type(result) is not ExecutionResult:
        return None if type(result) is AnswerLater else f"a result of type {type(result).__name__}"
    if result.error is not None:
        return None if isinstance(result.error, TpyError) else f"an error of type {type(result.error).__name__}"
    for output in result.outputs:
        if type(output) is not Tensor:
            return f"an output of type {type(output).__name__}"
        array: object = output.array
        if not isinstance(array, np.ndarray):
            if not isinstance(array, DeviceArray):
                return f"an output of type {type(array).__name__}"
            if residency is None or not residency.keeps(output.name):
                return f"output '{output.name}' on a device, where it may not stay"
        if output.array.dtype != output.datatype.numpy:
            return f"output '{output.name}' as {output.datatype.value} with dtype {output.array.dtype}"
    return None
