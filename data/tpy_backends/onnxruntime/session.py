"""Sessions: the one module that imports ONNX Runtime. Makes them, describes them with our types and shapes, turns their
exceptions into ours."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from tpy.errors import Internal, Unsupported
from tpy.messages import DataType
from tpy_backends.contents import contents_of
from tpy_backends.onnxruntime.providers import CUDA, TENSORRT, Provider, captures
from tpy_backends.onnxruntime.settings import OnnxRuntimeConfig, SessionSettings
from tpy_backends.signature import VARIABLE, Signature, TensorInfo

Array = np.ndarray[Any, Any]


def to_runtime(array: Array, datatype: DataType, *, scalar: bool) -> Array:
    """The array to feed ONNX Runtime with: the tensor's own wherever possible.

    Copies an array whose elements are not at addresses of their size (a view into a request's bytes may be so), and one
    of BF16 that is not contiguous: its strides would be ignored. BYTES become str objects. A tensor that is a `scalar` to
    the model is given as the one element it has.
    """
    if datatype is DataType.BYTES:
        array = _decoded(array)
    elif not array.flags.aligned or (datatype is DataType.BF16 and not array.flags.c_contiguous):
        array = array.copy(order="C")
    return array.reshape(()) if scalar else array


def from_runtime(array: Array, datatype: DataType, *, scalar_shape: tuple[int, ...]) -> Array:
    """The tensor for a request: the same memory, except that BYTES are encoded. A scalar gets `scalar_shape` (all ones)."""
    if datatype is DataType.BYTES:
        array = _encoded(array)
    return array if array.ndim else array.reshape(scalar_shape)


def _decoded(array: Array) -> Array:
    """Strings for ONNX Runtime, which would take str() of bytes objects.

    Text goes as str objects, zero bytes included. What is not UTF-8 goes as numpy's fixed-width bytes, one wider than the
    longest because ONNX Runtime reads up to the next zero; so a zero ends a string there, as it does in Triton.
    """
    elements = array.ravel().tolist()
    decoded = np.empty(len(elements), dtype=object)
    try:
        decoded[:] = [element.decode() for element in elements]
    except UnicodeDecodeError:
        width = max(map(len, elements)) + 1
        return np.array(elements, dtype=f"S{width}").reshape(array.shape)
    return decoded.reshape(array.shape)


def _encoded(array: Array) -> Array:
    elements = array.ravel().tolist()
    encoded = np.empty(len(elements), dtype=object)
    encoded[:] = [element.encode() for element in elements]
    return encoded.reshape(array.shape)


_DATATYPES: dict[str, DataType] = {
    "tensor(bool)": DataType.BOOL,
    "tensor(uint8)": DataType.UINT8,
    "tensor(uint16)": DataType.UINT16,
    "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int8)": DataType.INT8,
    "tensor(int16)": DataType.INT16,
    "tensor(int32)": DataType.INT32,
    "tensor(int64)": DataType.INT64,
    "tensor(float16)": DataType.FP16,
    "tensor(float)": DataType.FP32,
    "tensor(double)": DataType.FP64,
    "tensor(string)": DataType.BYTES,
    "tensor(bfloat16)": DataType.BF16,
}

_ONNX_TYPE_NAMES = {"seq": "ONNX_TYPE_SEQUENCE", "map": "ONNX_TYPE_MAP", "sparse_tensor": "ONNX_TYPE_SPARSETENSOR"}
"""By the word before the parenthesis, as Triton prints them; any other is ONNX_TYPE_UNKNOWN."""


_ZIPMAP = (
    " A classifier of scikit-learn has it from ZipMap: convert it again with options={'zipmap': False}, as "
    "`tpy init NAME --from model.joblib` does"
)


def tensor_info(name: str, onnx_type: str, shape: Sequence[object]) -> TensorInfo:
    """From what ONNX Runtime says: type such as "tensor(float)", sizes that are numbers, names or None.

    Raises Unsupported for anything but a tensor of a type that the inference protocol knows.
    """
    datatype = _DATATYPES.get(onnx_type)
    if datatype is None:
        kind = onnx_type.partition("(")[0]
        if kind == "tensor":
            raise Unsupported(f"Unsupported ONNX element type '{onnx_type}' for I/O '{name}': the protocol has no such datatype.")
        onnx_name = _ONNX_TYPE_NAMES.get(kind, "ONNX_TYPE_UNKNOWN")
        advice = _ZIPMAP if "map" in onnx_type else ""
        raise Unsupported(f"Unsupported ONNX Type '{onnx_name}' for I/O '{name}', expected 'ONNX_TYPE_TENSOR'.{advice}")
    return TensorInfo(name, datatype, tuple(size if isinstance(size, int) and size >= 0 else VARIABLE for size in shape))


VERSION: Final[str] = onnxruntime.__version__

_LOG_ERRORS_ONLY = 3
_ORT_FAIL = 1
_HOST_MEMORY = ("Cpu", "CudaPinned")
BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_ERROR_TEXT = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)

_NOT_READ = ("Protobuf parsing failed", "No graph was found in the protobuf")

_LIBRARIES = {
    CUDA: "; its libraries come with `pip install 'onnxruntime-gpu[cuda,cudnn]'`",
    TENSORRT: "; its library comes with `pip install tensorrt`, of the version that this ONNX Runtime was built for",
}
"""The packages of the libraries that a provider misses."""

_GRAPH_LEVELS = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
"""Triton's numbers for `optimization.graph.level`; any other means everything."""

_SPIN_US = 1000
"""Time for which a session's waiting threads keep their cores busy before they sleep. Left to itself ONNX Runtime spins for tens
of milliseconds (33 were measured), after each request and once when the session is made: the threads of 50 sessions
that are made together then keep every core from the server for more than a second. Shorter costs answers: 200 us gave up to a
tenth of the throughput of a model of 0.2 ms whose requests came 1 ms apart, 1000 us nothing."""

_WAITING = {f"session.{pool}_op.spin_duration_us": str(_SPIN_US) for pool in ("intra", "inter")}


def offered_providers() -> tuple[str, ...]:
    """The execution providers that the installed ONNX Runtime was built with."""
    return tuple(onnxruntime.get_available_providers())


def start_runtime(config: OnnxRuntimeConfig) -> None:
    """Process-wide settings. Raises Internal when the shared thread pool cannot be made (any more)."""
    onnxruntime.set_default_logger_severity(_LOG_ERRORS_ONLY)
    if CUDA in offered_providers() and hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(sys.stderr):  # it prints what it does not find
            onnxruntime.preload_dlls(directory="")  # CUDA and cuDNN of pip's packages are in no search path
    if config.global_thread_pool:
        try:
            onnxruntime.set_global_thread_pool_sizes(max(0, config.intra_op_thread_count), max(0, config.inter_op_thread_count))
        except AttributeError as error:
            raise Unsupported(f"enable-global-threadpool: onnxruntime {VERSION} does not offer it") from error
        except Exception as error:
            raise runtime_error(error) from error


def runtime_error(error: Exception) -> Internal:
    """Triton's text: `onnx runtime error <ORT's code>: <its message>`. An exception without a code counts as a plain failure."""
    match = _ERROR_TEXT.fullmatch(str(error))
    if match is None:
        return Internal(f"onnx runtime error {_ORT_FAIL}: {error}")
    return Internal(f"onnx runtime error {match[1]}: {match[2]}")


class OnnxSession:
    """A loaded model on one device. `run` may be called from several threads at once. `captures`: its runs are CUDA
    graphs, unless they say otherwise. `host_inputs` and `host_outputs` are what it reads and writes in host memory, wherever it
    runs."""

    def __init__(
        self,
        path: Path,
        settings: SessionSettings,
        *,
        providers: Sequence[Provider],
        operator_libraries: Sequence[str] = (),
        global_thread_pool: bool = False,
    ) -> None:
        """Read the file and make it ready. Raises Internal (not a model, a wrong option, no memory, a provider that did not
        start) or Unsupported (a tensor of a type that cannot be served)."""
        try:
            options = _session_options(settings, global_thread_pool=global_thread_pool)
            for library in operator_libraries:
                options.register_custom_ops_library(library)
            self._session = onnxruntime.InferenceSession(
                str(path),
                options,
                providers=[(name, dict(values)) for name, values in providers],
                enable_fallback=0,  # never on other devices than the configuration's without a word
            )
        except Exception as error:
            failed = runtime_error(error)
            if any(text in failed.message for text in _NOT_READ):
                failed = Internal(f"{failed.message}{contents_of(path, 'onnxruntime')}")
            raise failed from error
        running = self._session.get_providers()
        for name, _ in providers:
            if name not in running:
                raise Internal(
                    f"execution provider {name} did not start, see the log of ONNX Runtime; running: {running}"
                    f"{_LIBRARIES.get(name, '')}"
                )
        self.captures = captures(providers)
        self.signature = Signature(
            inputs=_infos(self._session.get_inputs()),
            outputs=_infos(self._session.get_outputs()),
            initializers=_infos(self._session.get_overridable_initializers()),
        )
        self.host_inputs = _on_host(self.signature.inputs, getattr(self._session, "get_input_memory_infos", None))
        self.host_outputs = _on_host(self.signature.outputs, getattr(self._session, "get_output_memory_infos", None))

    def run(self, output_names: Sequence[str], feed: Mapping[str, Array], options: RunOptions) -> list[Array | None]:
        """The outputs in the order asked for; arrays are ONNX Runtime's own memory, strings are str objects. No bfloat16.

        Raises Internal with ONNX Runtime's text.
        """
        try:
            outputs: list[Array | None] = self._session.run(output_names, feed, options.value)
        except Exception as error:
            raise runtime_error(error) from error
        return outputs

    def run_values(self, output_names: Sequence[str], feed: Mapping[str, Array], options: RunOptions) -> list[Array | None]:
        """As `run`, and bfloat16 arrays may go in and out: slower by some 40 microseconds."""
        try:
            values = {name: to_value(array) for name, array in feed.items()}
            outputs = self._session.run_with_ort_values(output_names, values, options.value)
            return [to_array(output) for output in outputs]
        except Exception as error:
            raise runtime_error(error) from error

    def io_binding(self) -> onnxruntime.IOBinding:
        """A new binding of this session's inputs and outputs."""
        return self._session.io_binding()

    def run_bound(self, binding: onnxruntime.IOBinding, options: RunOptions) -> None:
        """Run with what is bound. Raises Internal with ONNX Runtime's text."""
        try:
            self._session.run_with_iobinding(binding, options.value)
        except Exception as error:
            raise runtime_error(error) from error


class RunOptions:
    """Options of `OnnxSession.run`; one object serves any number of runs."""

    __slots__ = ("value",)

    def __init__(self, entries: Mapping[str, str]) -> None:
        self.value: onnxruntime.RunOptions | None = None
        if entries:
            options = onnxruntime.RunOptions()
            for key, text in entries.items():
                options.add_run_config_entry(key, text)
            self.value = options


def _session_options(settings: SessionSettings, *, global_thread_pool: bool) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_ERRORS_ONLY
    options.graph_optimization_level = _GRAPH_LEVELS.get(settings.graph_level, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    if settings.parallel_execution:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    if global_thread_pool:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = max(0, settings.intra_op_thread_count)
        options.inter_op_num_threads = max(0, settings.inter_op_thread_count)
    if settings.memory_arena is not None:
        options.enable_cpu_mem_arena = settings.memory_arena
    if settings.memory_pattern is not None:
        options.enable_mem_pattern = settings.memory_pattern
    for key, text in (_WAITING | dict(settings.session_entries)).items():
        options.add_session_config_entry(key, text)
    return options


def _infos(arguments: Sequence[onnxruntime.NodeArg]) -> dict[str, TensorInfo]:
    return {argument.name: tensor_info(argument.name, argument.type, argument.shape) for argument in arguments}


def _on_host(tensors: Mapping[str, TensorInfo], memory_infos: Callable[[], Sequence[Any]] | None) -> frozenset[str]:
    """The tensors that the graph reads or writes in host memory, such as shapes. ONNX Runtime before 1.23 does not tell: none."""
    if memory_infos is None:
        return frozenset()
    return frozenset(name for name, info in zip(tensors, memory_infos(), strict=True) if info.name in _HOST_MEMORY)


def to_value(array: Array) -> onnxruntime.OrtValue:
    """An OrtValue over the array's memory; the array must outlive it."""
    if array.dtype == DataType.BF16.numpy:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def to_array(value: onnxruntime.OrtValue | None) -> Array | None:
    """The value as an array over its memory, without a copy."""
    if value is None or not value.has_value():
        return None
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    if value.device_name() != "cpu":
        raise RuntimeError(f"a bfloat16 output is on device '{value.device_name()}', where it cannot be read")
    raw: Array = np.asarray(_MemoryOf(value))
    return raw.view(DataType.BF16.numpy)


class _MemoryOf:
    """Lends numpy the memory of a bfloat16 OrtValue, whose type numpy does not have, and keeps it alive meanwhile."""

    def __init__(self, value: onnxruntime.OrtValue) -> None:
        self._value = value
        self.__array_interface__ = {
            "version": 3,
            "data": (value.data_ptr(), False),
            "shape": tuple(value.shape()),
            "typestr": "<u2",
        }
