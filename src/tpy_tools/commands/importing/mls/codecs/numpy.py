"""Arrays of numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..types import Parameters, RequestInput, ResponseOutput, TensorData
from .base import InputCodec, register_input_codec, register_request_codec
from .utils import SingleInputRequestCodec, elements_of, inject_batch_dimension

NUMPY_TYPES: Mapping[str, str] = {
    "BOOL": "bool",
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
"""Types by datatype, without BYTES."""

_DATATYPES = {word: datatype for datatype, word in NUMPY_TYPES.items()}


def to_datatype(dtype: Any) -> str:
    """The datatype of an array's type. Raises ValueError for one that no tensor has."""
    found = _DATATYPES.get(str(dtype))
    if found is None and getattr(dtype, "kind", "") not in "OSU":
        raise ValueError(f"no datatype for arrays of {dtype}")
    return found or "BYTES"


def to_array(tensor: RequestInput) -> np.ndarray[Any, Any]:
    """The elements in the shape of the tensor; those of BYTES are texts, as they are over HTTP, or bytes."""
    if tensor.datatype != "BYTES":
        elements = tensor.data.array if tensor.data.array is not None else tensor.data.root
        return np.asarray(elements, NUMPY_TYPES[tensor.datatype]).reshape(tensor.shape)
    return np.array(list(elements_of(tensor))).reshape(tensor.shape)


@register_input_codec
class NumpyCodec(InputCodec):
    """An array in each input."""

    ContentType = "np"
    TypeHint = np.ndarray

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """As InputCodec."""
        return isinstance(payload, np.ndarray)

    @classmethod
    def encode_output(cls, name: str, payload: np.ndarray[Any, Any], **kwargs: Any) -> ResponseOutput:
        """As InputCodec."""
        datatype = to_datatype(payload.dtype)
        if datatype == "BYTES":
            texts = [each.encode() if isinstance(each, str) else each for each in payload.ravel().tolist()]
            data = TensorData(texts)
        else:
            data = TensorData(array=payload)
        return ResponseOutput(
            name=name,
            datatype=datatype,
            shape=inject_batch_dimension(payload.shape),
            data=data,
            parameters=Parameters(content_type=cls.ContentType),
        )

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> np.ndarray[Any, Any]:
        """As InputCodec."""
        return to_array(request_input)


@register_request_codec
class NumpyRequestCodec(SingleInputRequestCodec):
    """A request of one array."""

    InputCodec = NumpyCodec
    ContentType = NumpyCodec.ContentType
