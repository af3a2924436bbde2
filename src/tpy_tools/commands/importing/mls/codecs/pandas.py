"""Data frames of pandas, which is imported with the first of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..types import InferenceRequest, InferenceResponse, Parameters, RequestInput, ResponseOutput
from .base import RequestCodec, register_request_codec
from .numpy import NUMPY_TYPES, to_datatype
from .string import StringCodec
from .utils import get_decoded_or_raw, inject_batch_dimension


class _Frame:
    """The class of data frames, as a hint of arguments: equal to it, without importing pandas."""

    def __eq__(self, other: object) -> bool:
        return "pandas" in sys.modules and other is sys.modules["pandas"].DataFrame

    __hash__ = None  # type: ignore[assignment]  # nobody looks it up


def _series(tensor: RequestInput) -> Any:
    import pandas as pd

    if tensor.parameters is not None and tensor.parameters.content_type == PandasCodec.JsonContentType:
        return pd.Series([json.loads(each) for each in tensor.data.root])
    payload = get_decoded_or_raw(tensor)
    if payload is tensor.data:
        payload = tensor.data.array.ravel() if tensor.data.array is not None else tensor.data.root
    if tensor.datatype == "BYTES":
        return pd.Series(payload.ravel() if isinstance(payload, np.ndarray) else payload)
    if isinstance(payload, np.ndarray):
        payload = payload.reshape(tensor.shape[0])
    return pd.Series(payload, dtype=NUMPY_TYPES[tensor.datatype])


def _output(series: Any, use_bytes: bool) -> ResponseOutput:
    datatype = to_datatype(series.dtype)
    data = series.tolist()
    if series.isnull().any():
        data = [None if isinstance(each, float) and np.isnan(each) else each for each in data]
    content_type = None
    if datatype == "BYTES":
        if all(isinstance(each, (str, bytes)) for each in data):
            content_type = StringCodec.ContentType
            data = [each.encode() if use_bytes and isinstance(each, str) else each for each in data]
        else:
            content_type = PandasCodec.JsonContentType
            texts = (json.dumps(each, ensure_ascii=False, separators=(",", ":"), default=_listed) for each in data)
            data = [each.encode() if use_bytes else each for each in texts]
    return ResponseOutput(
        name=series.name,
        shape=inject_batch_dimension(series.shape),
        data=data,
        datatype=datatype,
        parameters=Parameters(content_type=content_type) if content_type else None,
    )


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


@register_request_codec
class PandasCodec(RequestCodec):
    """A data frame whose columns are the inputs."""

    ContentType = "pd"
    JsonContentType = "pd_json"
    TypeHint = _Frame()

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """As RequestCodec."""
        return "pandas" in sys.modules and isinstance(payload, sys.modules["pandas"].DataFrame)

    @classmethod
    def encode_response(
        cls, model_name: str, payload: Any, model_version: str | None = None, use_bytes: bool = True, **kwargs: Any
    ) -> InferenceResponse:
        """As RequestCodec."""
        return InferenceResponse(
            model_name=model_name,
            model_version=model_version,
            parameters=Parameters(content_type=cls.ContentType),
            outputs=cls.encode_outputs(payload, use_bytes),
        )

    @classmethod
    def decode_response(cls, response: InferenceResponse) -> Any:
        """As RequestCodec."""
        return cls._frame(response.outputs)

    @classmethod
    def encode_outputs(cls, payload: Any, use_bytes: bool = True) -> list[ResponseOutput]:
        """An output for each column."""
        return [_output(payload[each], use_bytes) for each in payload]

    @classmethod
    def encode_request(cls, payload: Any, use_bytes: bool = True, **kwargs: Any) -> InferenceRequest:
        """As RequestCodec."""
        inputs = [
            RequestInput(name=each.name, shape=each.shape, datatype=each.datatype, data=each.data, parameters=each.parameters)
            for each in cls.encode_outputs(payload, use_bytes)
        ]
        return InferenceRequest(parameters=Parameters(content_type=cls.ContentType), inputs=inputs)

    @classmethod
    def decode_request(cls, request: InferenceRequest) -> Any:
        """As RequestCodec."""
        return cls._frame(request.inputs)

    @classmethod
    def _frame(cls, tensors: Sequence[RequestInput]) -> Any:
        import pandas as pd

        return pd.DataFrame({each.name: _series(each) for each in tensors})
