"""A recorded TensorRT: the part of its Python API that the backend uses, over a FakeDevice.

`FakeTensorRT` stands for the package. Its engines are JSON (`plan`), their layers functions of NumPy (`NETWORKS`). Contexts check
what TensorRT checks: shapes against the profile, addresses that were never set, types of arguments. `test_package.py` holds the
names and the numbers of arguments against the package that is installed.
"""

from __future__ import annotations

import ctypes
import enum
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tpy.messages import DataType
from tpy.testing import FakeDevice

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

_DTYPES = {
    "FLOAT": DataType.FP32.numpy,
    "HALF": DataType.FP16.numpy,
    "BF16": DataType.BF16.numpy,
    "INT8": DataType.INT8.numpy,
    "UINT8": DataType.UINT8.numpy,
    "INT32": DataType.INT32.numpy,
    "INT64": DataType.INT64.numpy,
    "BOOL": DataType.BOOL.numpy,
    "FP8": np.dtype(np.uint8),
}


class Network(NamedTuple):
    """`shapes` gives the shapes of the outputs by those of the inputs and the values of shape tensors, -1 for what only `run`
    tells."""

    shapes: Callable[[Mapping[str, tuple[int, ...]], Arrays], dict[str, tuple[int, ...]]]
    run: Callable[[Arrays], Arrays]


def _fill(arrays: Arrays) -> Arrays:
    shape = tuple(int(size) for size in arrays["shape"])
    return {"y": np.full(shape, arrays["x"].ravel()[0]), "shape_out": arrays["shape"].astype(np.int64)}


def _sums(arrays: Arrays) -> Arrays:
    ends = np.cumsum(arrays["counts"].astype(int))
    return {"y": np.add.reduceat(arrays["x"], [0, *ends[:-1]])}


NETWORKS = {
    "double": Network(lambda shapes, _: {"y": shapes["x"]}, lambda arrays: {"y": arrays["x"] * arrays["x"].dtype.type(2)}),
    "two": Network(
        lambda shapes, _: {"sum": shapes["a"], "difference": shapes["a"]},
        lambda arrays: {"sum": arrays["a"] + arrays["b"], "difference": arrays["a"] - arrays["b"]},
    ),
    "nonzero": Network(lambda shapes, _: {"y": (-1,)}, lambda arrays: {"y": arrays["x"][arrays["x"] != 0]}),
    "fill": Network(
        lambda shapes, values: {
            "y": tuple(int(size) for size in values["shape"]),
            "shape_out": (len(values["shape"]),),
        },
        _fill,
    ),
    "sums": Network(lambda shapes, _: {"y": shapes["counts"]}, _sums),
    "accumulate": Network(
        lambda shapes, _: {"y": shapes["x"], "state_out": shapes["state_in"]},
        lambda arrays: {"y": arrays["x"] + arrays["state_in"], "state_out": arrays["x"] + arrays["state_in"]},
    ),
}


def tensor(
    name: str, mode: str, shape: tuple[int, ...], dtype: str = "FLOAT", *, is_shape: bool = False, form: str = "LINEAR"
) -> dict[str, Any]:
    """An input ("INPUT") or output ("OUTPUT") of a plan."""
    return {"name": name, "mode": mode, "shape": shape, "dtype": dtype, "is_shape": is_shape, "format": form}


def plan(network: str, *tensors: dict[str, Any], profiles: Any, **more: Any) -> bytes:
    """An engine. A profile maps an input to the smallest, the best and the largest shape; `values` in `more` are the profiles of
    shape tensors. `refuses_capture` and `memory` make it fail."""
    return json.dumps({"network": network, "tensors": tensors, "profiles": profiles, **more}).encode()


class Severity(enum.Enum):
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


class ILogger:
    Severity = Severity

    def __init__(self) -> None:
        pass


class IOutputAllocator:
    def __init__(self) -> None:
        pass


class TensorIOMode(enum.Enum):
    NONE, INPUT, OUTPUT = range(3)


class ExecutionContextAllocationStrategy(enum.Enum):
    STATIC, ON_PROFILE_CHANGE, USER_MANAGED = range(3)


class EngineInvalidityDiagnostics(enum.Enum):
    VERSION_MISMATCH, UNSUPPORTED_CC, OLD_CUDA_DRIVER, OLD_CUDA_RUNTIME, INSUFFICIENT_GPU_MEMORY, MALFORMED_ENGINE = (
        1 << bit for bit in range(6)
    )


class _Named(NamedTuple):
    name: str


class IExecutionContext:
    def __init__(self, engine: ICudaEngine) -> None:
        self._engine = engine
        self._profile = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._engine.recorded.record("profile", profile_index)
        if profile_index >= self._engine.num_optimization_profiles:
            return self._engine.recorded.refuse(f"profile {profile_index} is not there")
        self._profile = profile_index
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert all(type(size) is int for size in shape)
        least, _, most = self._engine.get_tensor_profile_shape(name, self._profile)
        if len(shape) != len(most) or not all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True)):
            return self._engine.recorded.refuse(f"Static dimension mismatch while setting input shape for {name}")
        self._engine.recorded.record("shape", name, shape)
        self._shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        assert type(memory) is int
        if name not in self._engine.recorded.tensors:
            return self._engine.recorded.refuse(f"{name} is not there")
        self._addresses[name] = memory
        return True

    def set_output_allocator(self, name: str, output_allocator: IOutputAllocator) -> bool:
        assert isinstance(output_allocator, IOutputAllocator)
        self._allocators[name] = output_allocator
        return True

    def infer_shapes(self) -> list[str]:
        return [
            name
            for name, each in self._engine.recorded.tensors.items()
            if each["mode"] == "INPUT"
            and (-1 in self.get_tensor_shape(name) or (each["is_shape"] and not self._addresses.get(name)))
        ]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        tensors = self._engine.recorded.tensors
        if tensors[name]["mode"] == "INPUT":
            return self._shapes.get(name, tuple(tensors[name]["shape"]))
        inputs = {other: self.get_tensor_shape(other) for other, each in tensors.items() if each["mode"] == "INPUT"}
        values = {other: self._read(other, inputs[other]) for other in inputs if tensors[other]["is_shape"]}
        return self._engine.recorded.network.shapes(inputs, values)[name]

    def get_max_output_size(self, name: str) -> int:
        shape = self.get_tensor_shape(name)
        return -1 if -1 in shape else math.prod(shape) * _DTYPES[self._engine.recorded.tensors[name]["dtype"]].itemsize

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine = self._engine
        engine.recorded.record("execute", self._profile, dict(self._shapes))
        if engine.recorded.library.fails:
            return engine.recorded.refuse("Error Code 1: Cuda Runtime (an illegal memory access was encountered)")
        if engine.recorded.description.get("refuses_capture") and engine.recorded.library.device.recording:
            return engine.recorded.refuse("operation not permitted when stream is capturing")
        for name, allocator in self._allocators.items():
            # What the shape will be is known only once the values are: TensorRT waits for them here.
            made = self._compute()[name]
            allocator.notify_shape(name, made.shape)
            address = allocator.reallocate_output_async(name, 0, made.nbytes, 256, stream_handle)
            if not address:
                return engine.recorded.refuse("IExecutionContext::enqueueV3: Error Code 2: OutOfMemory")
            self._addresses[name] = address
        engine.recorded.library.device.submit(self._execute)
        return True

    def _execute(self) -> None:
        for name, array in self._compute().items():
            assert self._addresses.get(name), f"the address of {name} was not set"
            self._bytes(self._addresses[name], array.nbytes)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def _compute(self) -> Arrays:
        tensors = self._engine.recorded.tensors
        inputs = [name for name, each in tensors.items() if each["mode"] == "INPUT"]
        made = self._engine.recorded.network.run({name: self._read(name, self.get_tensor_shape(name)) for name in inputs})
        return {name: array.astype(_DTYPES[tensors[name]["dtype"]]) for name, array in made.items()}

    def _read(self, name: str, shape: tuple[int, ...]) -> Array:
        dtype = _DTYPES[self._engine.recorded.tensors[name]["dtype"]]
        size = math.prod(shape) * dtype.itemsize
        assert self._addresses.get(name), f"the address of {name} was not set"
        return self._bytes(self._addresses[name], size).view(dtype).reshape(shape).copy()

    @staticmethod
    def _bytes(address: int, size: int) -> Array:
        return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


class Recorded:
    """The parts of an engine. `refuse` logs an error, and returns False."""

    def __init__(self, library: FakeTensorRT, logger: Any, description: dict[str, Any]) -> None:
        self.library = library
        self.description = description
        self.network = NETWORKS[description["network"]]
        self.tensors = {each["name"]: each for each in description["tensors"]}
        self._logger = logger

    def record(self, *call: Any) -> None:
        self.library.calls.append(call)

    def refuse(self, reason: str) -> bool:
        self._logger.log(Severity.ERROR, reason)
        return False


class ICudaEngine:
    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded

    @property
    def num_io_tensors(self) -> int:
        return len(self.recorded.tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.recorded.description["profiles"])

    def get_tensor_name(self, index: int) -> str:
        return list(self.recorded.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode[self.recorded.tensors[name]["mode"]]

    def get_tensor_dtype(self, name: str) -> _Named:
        return _Named(self.recorded.tensors[name]["dtype"])

    def get_tensor_format(self, name: str) -> _Named:
        return _Named(self.recorded.tensors[name]["format"])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.recorded.tensors[name]["shape"])

    def is_shape_inference_io(self, name: str) -> bool:
        return bool(self.recorded.tensors[name]["is_shape"])

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        shape = self.recorded.tensors[name]["shape"]
        return [tuple(each) for each in self.recorded.description["profiles"][profile_index].get(name, [shape] * 3)]

    def get_tensor_profile_values(self, name: int, profile_index: str) -> list[list[int]]:
        """TensorRT's names of the arguments are in the wrong order; it goes by their types."""
        assert isinstance(name, int)
        assert isinstance(profile_index, str)
        return [list(each) for each in self.recorded.description["values"][name][profile_index]]

    def create_execution_context(self, strategy: ExecutionContextAllocationStrategy) -> IExecutionContext | None:
        assert isinstance(strategy, ExecutionContextAllocationStrategy)
        self.recorded.record("context", strategy.name)
        if self.recorded.description.get("memory"):
            self.recorded.refuse("Error Code 2: OutOfMemory (Requested size was 1073741824 bytes.)")
            return None
        return IExecutionContext(self)


class Runtime:
    library: FakeTensorRT
    engine_header_size = 64
    num_DLA_cores = 1
    DLA_core = -1

    def __init__(self, logger: ILogger) -> None:
        assert isinstance(logger, ILogger)
        self._logger: Any = logger
        self.engine_host_code_allowed = False

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        self.library.calls.append(("deserialize", self.engine_host_code_allowed, self.DLA_core))
        refusal = self.library.refusal
        description = None
        try:
            description = json.loads(serialized_engine)
        except ValueError:
            refusal = refusal or "Serialization assertion magicTagRead == kMAGIC_TAG failed. Magic tag does not match"
        if refusal:
            self._logger.log(Severity.ERROR, refusal)
            return None
        return ICudaEngine(Recorded(self.library, self._logger, description))

    def get_engine_validity(self, buffer: bytes) -> tuple[None, int]:
        return None, self.library.diagnostics


class IPluginRegistry:
    def __init__(self) -> None:
        self.loaded: list[str] = []

    def load_library(self, plugin_path: str) -> object | None:
        if "missing" in plugin_path:
            return None
        self.loaded.append(plugin_path)
        return object()


class FakeTensorRT:
    """The package. `calls` has what was asked of contexts and runtimes, in order; `refusal` is the error with which engines are
    refused, `diagnostics` what is wrong with their heads; with `fails` no run begins."""

    __name__ = "tensorrt"
    __version__ = "10.14.1.48"

    ILogger = ILogger
    IOutputAllocator = IOutputAllocator
    TensorIOMode = TensorIOMode
    ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy
    EngineInvalidityDiagnostics = EngineInvalidityDiagnostics

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.calls: list[tuple[Any, ...]] = []
        self.refusal = ""
        self.diagnostics = 0
        self.fails = False
        self.registry = IPluginRegistry()
        self.Runtime = type("Runtime", (Runtime,), {"library": self})

    def init_libnvinfer_plugins(self, logger: ILogger, namespace: str) -> bool:
        return True

    def get_plugin_registry(self) -> IPluginRegistry:
        return self.registry

    def executed(self) -> list[tuple[int, dict[str, tuple[int, ...]]]]:
        """The profile and the shapes of each execution since this was last asked."""
        found = [(call[1], call[2]) for call in self.calls if call[0] == "execute"]
        self.calls.clear()
        return found
