"""pb_utils.InferenceResponse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .failures import TritonError
from .parameters import parameters_json
from .tensor import Tensor


class InferenceResponse:
    """The answer to one request: tensors, or an error for this request alone."""

    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        is_listed = isinstance(output_tensors, (list, tuple, Sequence, np.ndarray))
        if not is_listed or not all(isinstance(tensor, Tensor) for tensor in output_tensors):
            raise TypeError(
                f"InferenceResponse: output_tensors must be a list of pb_utils.Tensor objects. Invoked with: {output_tensors!r}"
            )
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse: error must be a pb_utils.TritonError, got {error!r}")
        if parameters is not None and not isinstance(parameters, dict):
            raise TypeError(f"InferenceResponse: parameters must be a dict, got {type(parameters).__name__}")
        self._output_tensors = list(output_tensors)
        self._error = error
        self._parameters = parameters_json(parameters) if parameters else "{}"

    def output_tensors(self) -> list[Tensor]:
        """The outputs."""
        return self._output_tensors

    def has_error(self) -> bool:
        """Returns True if it carries an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, or None."""
        return self._error

    def parameters(self) -> str:
        """The response's parameters as a JSON object."""
        return self._parameters


def received_response(output_tensors: list[Tensor], error: TritonError | None, parameters: str) -> InferenceResponse:
    """The response to a call, unchecked: the server has made it. `parameters` is a JSON object."""
    response = InferenceResponse.__new__(InferenceResponse)
    response._output_tensors = output_tensors
    response._error = error
    response._parameters = parameters
    return response
