"""Between the server's requests and results and what crosses to model code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tpy.backend import ExecutionRequest, ExecutionResult
from tpy.devices import DeviceArray
from tpy.errors import ERROR_OF_CODE, TRITON_ERROR_CODES, ErrorCode, InvalidArgument, TpyError
from tpy.limits import LOAD_OVERRIDE_BYTES_MAX
from tpy.messages import DataType, LoadRequest, MemoryType, ParameterValue, Place, SequencePosition, Tensor
from tpy.messages.datatypes import BY_NUMBER
from tpy.regions import RegionArray
from tpy_data.backends.python.worker.wire.core.frames import ProtocolViolation

_FILE = "file:"

_NUMBERS = {code: number for number, code in enumerate(TRITON_ERROR_CODES)}
_INTERNAL = _NUMBERS[ErrorCode.INTERNAL]
_FLAG_START = 1
_FLAG_END = 2
_UINT16 = np.dtype(np.uint16)
_NULL = b"null"
_encode = msgspec.json.encode
_decode_parameters = msgspec.json.Decoder(dict[str, ParameterValue]).decode


def storage(tensor: Tensor, *, stays: bool = False) -> np.ndarray[Any, Any]:
    """The tensor's array in the worker's storage form: BF16 as uint16, all others as they are; a copy in host memory of one on a
    device, unless it `stays` there. What is in a region of a client's stays there, until it is read into the worker's memory; of
    memory of a GPU a copy on it `stays`."""
    array = tensor.array
    if type(array) is not np.ndarray:
        there: object = array
        if isinstance(there, RegionArray):
            if not stays or there.gpu is None:
                return array
            array = there.within_reach(frozenset({Place(MemoryType.GPU, there.gpu)}))
        elif not stays:
            array = there.to_host() if isinstance(there, DeviceArray) else array
        if type(array) is not np.ndarray:
            return array
    return array.view(_UINT16) if tensor.datatype is DataType.BF16 else array


def tensor(name: str, number: int, array: Any) -> Tensor:
    """A tensor from an array in the worker's storage form. Raises ProtocolViolation for an unknown type."""
    datatype = BY_NUMBER.get(number)
    if datatype is None or datatype is DataType.INVALID:
        raise ProtocolViolation(f"tensor '{name}' has type {number}")
    if datatype is DataType.BF16:
        on_device = isinstance(array, DeviceArray)
        array = DeviceArray(array.memory, array.shape, datatype.numpy, array.offset) if on_device else array.view(datatype.numpy)
    return Tensor(name, datatype, array)


def parameters_text(parameters: Mapping[str, ParameterValue]) -> str:
    """A request's parameters as JSON, "" for none. NaN and infinities are literals, as Triton writes them."""
    if not parameters:
        return ""
    text = _encode(parameters)
    if _NULL in text and any(type(value) is float and not math.isfinite(value) for value in parameters.values()):
        return json.dumps(dict(parameters), separators=(",", ":"))  # which msgspec makes null
    return text.decode()


def parameters_of(text: str) -> dict[str, ParameterValue]:
    """A response's parameters from JSON, which may have the literals of `parameters_text`. Raises msgspec.DecodeError."""
    if not text:
        return {}
    try:
        return _decode_parameters(text)
    except msgspec.DecodeError:
        if "NaN" not in text and "Infinity" not in text:
            raise
        return _parameters_with_literals(text)


def _parameters_with_literals(text: str) -> dict[str, ParameterValue]:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
    if not isinstance(found, dict) or not all(isinstance(value, (bool, int, float, str)) for value in found.values()):
        raise msgspec.DecodeError("expected an object of booleans, numbers and strings")
    return found


def code_of(error: TpyError) -> int:
    """An error's code, as a worker names it."""
    return _NUMBERS.get(error.code, _INTERNAL)


def sequence_of(correlation_id: int | str, flags: int) -> SequencePosition | None:
    """The place in its sequence of a request that model code makes."""
    if not correlation_id and not flags:
        return None
    return SequencePosition(correlation_id=correlation_id, start=bool(flags & _FLAG_START), end=bool(flags & _FLAG_END))


def correlation_and_flags(sequence: SequencePosition | None) -> tuple[int | str, int]:
    """A request's place in its sequence, in the worker's terms."""
    if sequence is None:
        return 0, 0
    return sequence.correlation_id, (_FLAG_START if sequence.start else 0) | (_FLAG_END if sequence.end else 0)


def error_of(code: int, text: str) -> TpyError:
    """The error that model code gave to one request. Raises ProtocolViolation for an unknown code."""
    if not 0 <= code < len(TRITON_ERROR_CODES):
        raise ProtocolViolation(f"unknown error code {code}")
    return ERROR_OF_CODE[TRITON_ERROR_CODES[code]](text)


def result(outputs: Sequence[Tensor], parameters: Mapping[str, ParameterValue]) -> ExecutionResult:
    """A successful answer."""
    return ExecutionResult(outputs, None, parameters) if parameters else ExecutionResult(outputs)


def wanted_of(request: ExecutionRequest) -> tuple[str, ...] | None:
    """The outputs that the caller named, None when it named none."""
    return request.requested_outputs or None


def load_request(model: str, config: str, files: dict[str, bytes]) -> LoadRequest:
    """Raises InvalidArgument for files that a load call cannot have."""
    named = {}
    for path, content in files.items():
        if not path.startswith(_FILE):
            raise InvalidArgument(f"failed to load '{model}': files are named '{_FILE}<version>/<name>', got '{path}'")
        named[path.removeprefix(_FILE)] = content
    size = sum(map(len, named.values()))
    if size > LOAD_OVERRIDE_BYTES_MAX:
        raise InvalidArgument(f"failed to load '{model}': {size} bytes of files, at most {LOAD_OVERRIDE_BYTES_MAX} are taken")
    return LoadRequest(model_name=model, config_json=config or None, files=named)


def failed_request(instance: str, error: TpyError) -> str:
    """Triton's words for what a model asked its backend and did not get."""
    return f"Failed to process the request for model '{instance}', message: {error}"
