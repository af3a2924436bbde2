"""Finds results that a backend may not give."""

from __future__ import annotations

from typing import cast

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
        if type(output) is not Tensor or not isinstance(output.array, np.ndarray):
            flaw = _not_on_the_host(output, residency)
            if flaw is not None:
                return flaw
        if output.array.dtype != output.datatype.numpy:
            return f"output '{output.name}' as {output.datatype.value} with dtype {output.array.dtype}"
    return None


def _not_on_the_host(output: object, residency: Residency | None) -> str | None:
    """The flaw of an output that is no tensor in host memory."""
    if type(output) is not Tensor or not isinstance(cast(object, output.array), DeviceArray):
        return f"an output of type {type(output).__name__}"
    if residency is None or not residency.keeps(output.name):
        return f"output '{output.name}' on a device, where it may not stay"
    return None
