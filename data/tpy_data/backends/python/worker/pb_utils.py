"""`triton_python_backend_utils`: the module that model.py imports, usually as `pb_utils`.

Names, arguments and texts are Triton's. What this server does not offer yet is here too and says so when it is used.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from . import context, datatypes
from .auto_complete import ModelConfig
from .failures import TritonError, TritonModelException
from .logger import Logger
from .metrics import MetricFamily
from .model_calls import is_model_ready, load_model, unload_model
from .pending_call import ResponseIterator
from .request import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceRequest,
    PreferredMemory,
    is_of_the_models_making,
)
from .response import InferenceResponse
from .response_sender import InferenceResponseSender
from .tensor import Tensor
from .trace import InferenceTrace

TRITON_STRING_TO_NUMPY = datatypes.STRING_TO_NUMPY

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The request's input called `name`, or None. A name that no request can have is a warning in the log, once."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    known = context.current()
    if known is not None and known.missing is not None and not is_of_the_models_making(inference_request):
        known.missing.look(name)
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The response's output called `name`, or None."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration of the input called `name`, or None. `model_config` is args["model_config"], parsed."""
    return _named(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration of the output called `name`, or None."""
    return _named(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Returns True if the configuration makes the model decoupled."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_to_numpy_type(data_type: int) -> type[Any] | None:
    """The numpy type of a type number; None if numpy does not have it (BF16)."""
    return datatypes.NUMPY_OF_NUMBER.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The type number of a numpy type or dtype; None for anything else, such as Python's types and names of types."""
    if data_type == np.bytes_:
        return datatypes.BYTES
    return next((number for number, kind in datatypes.NUMPY_OF_NUMBER.items() if data_type == kind), None)


def triton_string_to_numpy(triton_type_string: str) -> type[Any]:
    """The numpy type of a configuration word such as "TYPE_FP32". Raises KeyError for an unknown word."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> bytes | tuple[()] | None:
    """The wire form of a BYTES array: per element a little-endian u32 length and the bytes.

    As Triton's: an empty array gives (), an array that is neither object nor bytes gives None.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype == np.object_ or input_tensor.dtype.type == np.bytes_:
        return datatypes.serialize(input_tensor)
    return None


def deserialize_bytes_tensor(encoded_tensor: Any) -> np.ndarray[Any, Any]:
    """The elements of a wire form as a flat object array of bytes. Raises struct.error when it is cut short."""
    view = memoryview(encoded_tensor)
    elements = []
    offset = 0
    while offset < len(view):
        (length,) = struct.unpack_from("<I", view, offset)
        elements.append(struct.unpack_from(f"<{length}s", view, offset + 4)[0])
        offset += 4 + length
    flat = np.empty(len(elements), np.object_)
    flat[:] = elements
    return flat


def get_model_dir() -> str:
    """The model's version folder. Raises TritonModelException where no model is being served."""
    known = context.current()
    if known is None:
        raise TritonModelException(
            "get_model_dir() is known in a served model only; an in-process model must call it in its instance's own thread"
        )
    return known.directory


def _named(listed: Any, name: str) -> dict[str, Any] | None:
    return next((entry for entry in listed if entry["name"] == name), None)
