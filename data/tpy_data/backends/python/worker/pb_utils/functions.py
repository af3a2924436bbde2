"""The functions of pb_utils: on tensors, types and configurations, and to load, unload and ask for models."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ..wire.core import datatypes
from . import context
from .arguments import as_text, text_argument
from .context import SERVING, CallPort
from .failures import TritonModelException
from .request import InferenceRequest, is_of_the_models_making
from .response import InferenceResponse
from .tensor import Tensor

TRITON_STRING_TO_NUMPY = datatypes.STRING_TO_NUMPY


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


def load_model(model_name: str, config: str = "", files: dict[str, Any] | None = None) -> None:
    """Load or reload a model and return when it serves; the server must run with --model-control-mode=explicit.

    `config` is a configuration as JSON, in place of config.pbtxt; `files` maps "file:<version>/<name>" to contents, which make up
    the model instead of its folder. Raises TritonModelException with the reason when it does not load.
    """
    model_name = text_argument("load_model", "model_name", model_name)
    config = text_argument("load_model", "config", config)
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    contents: dict[str, bytes] = {}
    for path, content in (files or {}).items():
        path_text = as_text(path)
        if path_text is None or not isinstance(content, (bytes, bytearray, memoryview, str)):
            raise TritonModelException(
                f"failed to load model '{model_name}', files should map paths (str) to contents (bytes), got {path!r}: "
                f"{type(content).__name__}"
            )
        contents[path_text] = content.encode() if isinstance(content, str) else bytes(content)
    port = _port("load_model()")
    if port.phase != SERVING:
        raise TritonModelException(
            f"Failed to load model: load_model() is not possible in {port.phase}(), where it could wait for itself; "
            "expected it in execute() or in a thread of the model"
        )
    try:
        port.load_model(model_name, config, contents)
    except TritonModelException as error:
        raise TritonModelException(f"Failed to load model: {error}") from None


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Stop serving a model; requests that it has are finished. Unknown models are fine. Raises TritonModelException."""
    model_name = text_argument("unload_model", "model_name", model_name)
    port = _port("unload_model()")
    try:
        port.unload_model(model_name, unload_dependents=bool(unload_dependents))
    except TritonModelException as error:
        raise TritonModelException(f"Failed to unload model: {error}") from None


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Returns True if the version ("": any) of a model would serve a request. Raises TritonModelException for an invalid
    version."""
    model_name = text_argument("is_model_ready", "model_name", model_name, "replace")
    model_version = text_argument("is_model_ready", "model_version", model_version)
    version: int | None = None
    if model_version:
        try:
            version = int(model_version)
        except ValueError:
            version = -1
        if version < 0:
            raise TritonModelException(
                "Failed to check model readiness: failed to get model version from specified version string "
                f"'{model_version}', version should be an integral value > 0"
            )
    return _port("is_model_ready()").is_model_ready(model_name, version)


def _named(listed: Any, name: str) -> dict[str, Any] | None:
    return next((entry for entry in listed if entry["name"] == name), None)


def _port(function: str) -> CallPort:
    known = context.current()
    if known is None or known.calls is None:
        raise TritonModelException(f"{function} is possible in a served model only")
    return known.calls
