"""DALI's C interface (`dali/dali.h`), by ctypes: the functions that run a serialized pipeline.

DALI's Python interface cannot say what the inputs of a serialized pipeline are, nor run on the CPU what was made for a GPU, nor
read the traces of operators. These functions answer with a status, and do not throw. Layouts may not be NULL, though the header
says otherwise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER
from pathlib import Path
from typing import Any, Final

import nvidia.dali  # loads the operators, and finds the decoders of images
from nvidia.dali import backend_impl, plugin_manager

from tpy.errors import Internal
from tpy.messages import DataType

VERSION: Final[str] = nvidia.dali.__version__

DYNAMIC_EXECUTOR: Final = 1 | 2 | 8
"""DALI's default, which alone runs all pipelines."""

WAIT: Final = 1
NO_COPY: Final = 4
"""Ways to feed an input: copied, and the copy is waited for; or used where it is."""

COPY_AND_WAIT: Final = 2
"""The way to copy an output."""

NO_LAYOUT: Final = b""
_CPU_ONLY: Final = -99_999
_BATCH_SIZE_FIELD: Final = 2
_DEVICE_FIELD: Final = 8
_SUCCESS: Final = 0

NUMBER_OF: Final[dict[DataType, int]] = {
    DataType.UINT8: 0,
    DataType.UINT16: 1,
    DataType.UINT32: 2,
    DataType.UINT64: 3,
    DataType.INT8: 4,
    DataType.INT16: 5,
    DataType.INT32: 6,
    DataType.INT64: 7,
    DataType.FP16: 8,
    DataType.FP32: 9,
    DataType.FP64: 10,
    DataType.BOOL: 11,
}
DATATYPE_OF: Final = {number: datatype for datatype, number in NUMBER_OF.items()}


class IODescription(ctypes.Structure):
    """An input or output. `present` has bits for `dtype` (1) and `ndim` (2)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("device", ctypes.c_int),
        ("present", ctypes.c_uint),
        ("dtype", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("layout", ctypes.c_char_p),
    )


class PipelineParameters(ctypes.Structure):
    """Values that override a pipeline's own. `present` has a bit for each of the others, in their order; a pair counts as one."""

    _fields_ = (
        ("present", ctypes.c_uint64),
        ("max_batch_size", ctypes.c_int),
        ("num_threads", ctypes.c_int),
        ("device_id", ctypes.c_int),
        ("seed", ctypes.c_int64),
        ("exec_type", ctypes.c_int),
        ("exec_flags", ctypes.c_int),
        ("prefetch_queue_depths", ctypes.c_int * 2),
        ("enable_checkpointing", ctypes.c_uint8),
        ("enable_memory_stats", ctypes.c_uint8),
        ("bytes_per_sample_hint", ctypes.c_size_t),
    )

    def override(self, name: str, value: Any) -> None:
        """Set one of them."""
        setattr(self, name, value)
        self.present |= 1 << [field[0] for field in self._fields_[1:]].index(name)


class Placement(ctypes.Structure):
    """A place of buffers. All zeros: the host's memory."""

    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int), ("pinned", ctypes.c_uint8))


class DaliTensor(ctypes.Structure):
    """A tensor: one of a batch, or a whole batch as one."""

    _fields_ = (
        ("ndim", ctypes.c_int),
        ("shape", POINTER(ctypes.c_int64)),
        ("dtype", ctypes.c_int),
        ("layout", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
    )


ON_HOST: Final = Placement()

_LIBRARY = ctypes.CDLL(str(Path(nvidia.dali.__file__).parent / "libdali.so"))
_LIBRARY.daliGetLastErrorMessage.restype = ctypes.c_char_p
_ARGUMENTS: dict[str, Sequence[Any]] = {
    "daliInit": (),
    "daliPipelineDeserialize": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, POINTER(PipelineParameters)),
    "daliPipelineBuild": (ctypes.c_void_p,),
    "daliPipelineDestroy": (ctypes.c_void_p,),
    "daliPipelineRun": (ctypes.c_void_p,),
    "daliPipelineGetInputCount": (ctypes.c_void_p, POINTER(ctypes.c_int)),
    "daliPipelineGetInputDescByIdx": (ctypes.c_void_p, POINTER(IODescription), ctypes.c_int),
    "daliPipelineGetOutputCount": (ctypes.c_void_p, POINTER(ctypes.c_int)),
    "daliPipelineGetOutputDesc": (ctypes.c_void_p, POINTER(IODescription), ctypes.c_int),
    "daliPipelineFeedInput": (
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p,
    ),
    "daliPipelinePopOutputs": (ctypes.c_void_p, ctypes.c_void_p),
    "daliPipelineOutputsGet": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
    "daliPipelineOutputsGetTrace": (ctypes.c_void_p, POINTER(ctypes.c_char_p), ctypes.c_char_p, ctypes.c_char_p),
    "daliPipelineOutputsDestroy": (ctypes.c_void_p,),
    "daliTensorListCreate": (ctypes.c_void_p, Placement),
    "daliTensorListAttachSamples": (
        ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, POINTER(DaliTensor), ctypes.c_void_p,
    ),
    "daliTensorListGetShape": (
        ctypes.c_void_p, POINTER(ctypes.c_int), POINTER(ctypes.c_int), POINTER(POINTER(ctypes.c_int64)),
    ),
    "daliTensorListGetDType": (ctypes.c_void_p, POINTER(ctypes.c_int)),
    "daliTensorListGetByteSize": (ctypes.c_void_p, POINTER(ctypes.c_size_t)),
    "daliTensorListCopyOut": (ctypes.c_void_p, ctypes.c_void_p, Placement, ctypes.c_void_p, ctypes.c_int),
    "daliTensorListDecRef": (ctypes.c_void_p, POINTER(ctypes.c_int)),
    "daliTensorListGetBufferPlacement": (ctypes.c_void_p, POINTER(Placement)),
    "daliTensorListViewAsTensor": (ctypes.c_void_p, POINTER(ctypes.c_void_p)),
    "daliTensorGetDesc": (ctypes.c_void_p, POINTER(DaliTensor)),
    "daliTensorDecRef": (ctypes.c_void_p, POINTER(ctypes.c_int)),
}  # fmt: skip
for _name, _arguments in _ARGUMENTS.items():
    getattr(_LIBRARY, _name).argtypes = _arguments
    getattr(_LIBRARY, _name).restype = ctypes.c_int


def call(name: str, *arguments: Any) -> None:
    """Call a function. Raises Internal with DALI's text."""
    if getattr(_LIBRARY, name)(*arguments) != _SUCCESS:
        text = (_LIBRARY.daliGetLastErrorMessage() or b"no reason").decode(errors="replace").strip()
        raise Internal(f"DALI error: {text}")


def succeeds(name: str, *arguments: Any) -> bool:
    """Call a function that may say no."""
    status: int = getattr(_LIBRARY, name)(*arguments)
    return status == _SUCCESS


def trace_of(outputs: ctypes.c_void_p, operator: bytes, name: bytes) -> bytes | None:
    """Returns the value that an operator left of its last run; None for nothing."""
    found = ctypes.c_char_p()
    status = _LIBRARY.daliPipelineOutputsGetTrace(outputs, ctypes.byref(found), operator, name)
    return found.value if status == _SUCCESS else None


def is_pipeline(content: bytes) -> bool:
    """Returns whether this is a serialized pipeline."""
    return bool(content) and _LIBRARY.daliIsDeserializable(content, len(content)) == 0


def for_cpu(serialized: bytes) -> bytes:
    """The pipeline with its device taken away. It is a protobuf message, of whose fields the last value counts; to override the
    device when it is deserialized does not work without a driver."""
    value = _CPU_ONLY & (1 << 64) - 1
    encoded = bytearray([_DEVICE_FIELD << 3])
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return serialized + bytes([*encoded, value])


def batch_size_of(serialized: bytes) -> int:
    """The batch size that the pipeline was made for; 0 for none. Its fields up to this one are numbers."""
    at = 0
    while at < len(serialized):
        key, at = _varint(serialized, at)
        if key & 7:
            break
        value, at = _varint(serialized, at)
        if key >> 3 == _BATCH_SIZE_FIELD:
            return value
    return 0


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of a protobuf message, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def load_plugin(path: str) -> None:
    """Load a library of operators. Raises Internal."""
    try:
        plugin_manager.load_library(path)
    except Exception as error:
        raise Internal(f"DALI error: cannot load '{path}': {error}") from error


def release_unused_memory() -> None:
    """Give memory back that DALI keeps for pipelines to come."""
    backend_impl.ReleaseUnusedMemory()


def gpu_count() -> int:
    """The number of GPUs that DALI can use."""
    return int(backend_impl.GetCUDADeviceCount())


call("daliInit")
