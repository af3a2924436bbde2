"""CudaDevice: a GPU, through the driver's own library. No CUDA installation is needed, and no framework: what they allocate in
this process is in the same (primary) context, so their memory and streams are ours and ours theirs.

CUDA graphs: work of a stream that is recorded once, and queued as a whole.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tpy import dlpack
from tpy.devices import cuda_ipc
from tpy.devices.device import Bytes, DeviceMemory, Graph, IpcAddress, Stream
from tpy.errors import Internal, InvalidArgument, Unavailable

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads do does not affect the recording

_GRAPH_SIGNATURES = {
    "cuStreamBeginCapture_v2": (ctypes.c_void_p, ctypes.c_int),
    "cuStreamEndCapture": (ctypes.c_void_p, ctypes.c_void_p),
    "cuGraphInstantiateWithFlags": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong),
    "cuGraphLaunch": (ctypes.c_void_p, ctypes.c_void_p),
    "cuGraphExecDestroy": (ctypes.c_void_p,),
    "cuGraphDestroy": (ctypes.c_void_p,),
}
"""The functions of cuda.h that are used here: argument types."""


class _Driver(Protocol):
    """Calls the driver's functions in a device's context (`CudaDevice`)."""

    def call(self, name: str, *arguments: object) -> None:
        """Raises TpyError."""
        ...

    def call_quietly(self, name: str, *arguments: object) -> None:
        """The same, for what is given back."""
        ...


class _CudaGraph:
    """Implements `Graph`."""

    def __init__(self, driver: _Driver, handle: int | None) -> None:
        self._driver = driver
        self._handle = handle
        weakref.finalize(self, driver.call_quietly, "cuGraphExecDestroy", handle).atexit = False

    def launch(self, stream: Stream) -> None:
        """As `Graph`."""
        self._driver.call("cuGraphLaunch", self._handle, stream.handle)


def capture(driver: _Driver, stream: Stream, record: Callable[[], None]) -> _CudaGraph:
    """As `Device.capture`."""
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuStreamBeginCapture_v2", stream.handle, _THREAD_LOCAL)
    try:
        record()
    except BaseException:
        driver.call_quietly("cuStreamEndCapture", stream.handle, ctypes.pointer(graph))
        if graph.value:
            driver.call_quietly("cuGraphDestroy", graph)
        raise
    driver.call("cuStreamEndCapture", stream.handle, ctypes.pointer(graph))
    try:
        driver.call("cuGraphInstantiateWithFlags", ctypes.pointer(executable), graph, 0)
    finally:
        driver.call_quietly("cuGraphDestroy", graph)
    return _CudaGraph(driver, executable.value)


_LIBRARY = "libcuda.so.1"
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every device

IPC_HANDLE_BYTES = 64


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * IPC_HANDLE_BYTES),)


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuGetErrorString": (ctypes.c_int, ctypes.c_void_p),
    "cuDeviceGet": (ctypes.c_void_p, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.c_void_p, ctypes.c_int),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuCtxPopCurrent_v2": (ctypes.c_void_p,),
    "cuMemAlloc_v2": (ctypes.c_void_p, ctypes.c_size_t),
    "cuMemFree_v2": (ctypes.c_uint64,),
    "cuMemHostAlloc": (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint),
    "cuMemFreeHost": (ctypes.c_void_p,),
    "cuMemcpyHtoDAsync_v2": (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
    "cuMemcpyDtoHAsync_v2": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p),
    "cuMemcpyDtoDAsync_v2": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p),
    "cuCtxGetStreamPriorityRange": (ctypes.c_void_p, ctypes.c_void_p),
    "cuStreamCreateWithPriority": (ctypes.c_void_p, ctypes.c_uint, ctypes.c_int),
    "cuStreamSynchronize": (ctypes.c_void_p,),
    "cuStreamDestroy_v2": (ctypes.c_void_p,),
    "cuMemGetAddressRange_v2": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64),
    "cuIpcGetMemHandle": (ctypes.c_void_p, ctypes.c_uint64),
    "cuIpcOpenMemHandle_v2": (ctypes.c_void_p, _IpcHandle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (ctypes.c_uint64,),
    **_GRAPH_SIGNATURES,
}
"""The functions of cuda.h that are used, with their argument types; each returns a CUresult."""


def load_driver() -> Any:
    """Returns the driver's library. Raises Unavailable when there is no driver."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        for name, types in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, ctypes.c_int
    except (OSError, AttributeError) as error:
        raise Unavailable(f"there is no usable CUDA driver: {error}") from error
    return library


class CudaStream:
    """A stream of a CudaDevice."""

    def __init__(self, device: CudaDevice, handle: int) -> None:
        self._device = device
        self.handle = handle
        weakref.finalize(self, device.call_quietly, "cuStreamDestroy_v2", handle).atexit = False

    def synchronize(self) -> None:
        """As `Stream`."""
        self._device.call("cuStreamSynchronize", self.handle)


class CudaDevice:
    """Implements `Device`. `driver` is the library, or what stands for it in tests."""

    def __init__(self, device_id: int, driver: Any = None) -> None:
        """Makes the device's context in this process. Raises Unavailable without a driver, Internal when it refuses."""
        self.id = device_id
        self.dlpack_type = dlpack.CUDA
        self.sharing_module = Path(cuda_ipc.__file__)
        self._driver = load_driver() if driver is None else driver
        self._context = ctypes.c_void_p()
        self._copying = threading.local()
        self._require(self._driver.cuInit(0), "cuInit")
        ordinal = ctypes.c_int()
        self._require(self._driver.cuDeviceGet(ctypes.pointer(ordinal), device_id), "cuDeviceGet")
        code = self._driver.cuDevicePrimaryCtxRetain(ctypes.pointer(self._context), ordinal)
        self._require(code, "cuDevicePrimaryCtxRetain")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver in the device's context. Raises Unavailable for no memory, else Internal."""
        with self._entered():
            code = getattr(self._driver, name)(*arguments)
        self._require(code, name)

    def call_quietly(self, name: str, *arguments: Any) -> None:
        """The same, for what is given back: the context may be gone, and everything with it."""
        with self._entered():
            getattr(self._driver, name)(*arguments)

    def current(self) -> AbstractContextManager[None]:
        """As `Device`."""
        return self._entered()

    def stream(self, priority: int = 0) -> Stream:
        """As `Device`. Of CUDA's priorities the lowest number goes first."""
        handle, last, first = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        self.call("cuCtxGetStreamPriorityRange", ctypes.pointer(last), ctypes.pointer(first))
        number = first.value if priority > 0 else last.value if priority < 0 else 0
        self.call("cuStreamCreateWithPriority", ctypes.pointer(handle), _NON_BLOCKING, number)
        return CudaStream(self, handle.value or 0)

    def capture(self, stream: Stream, record: Callable[[], None]) -> Graph:
        """As `Device`."""
        return capture(self, stream, record)

    def allocate(self, size: int) -> DeviceMemory:
        """As `Device`."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.pointer(address), max(1, size))
        return DeviceMemory(self, address.value, size, release=partial(self.call_quietly, "cuMemFree_v2", address.value))

    def allocate_pinned(self, size: int) -> Bytes:
        """As `Device`."""
        address = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.pointer(address), max(1, size), _PORTABLE)
        found = (ctypes.c_uint8 * size).from_address(address.value or 0)
        weakref.finalize(found, self.call_quietly, "cuMemFreeHost", address.value).atexit = False
        array: Bytes = np.ctypeslib.as_array(found)
        return array

    def copy_in(self, target: int, source: Bytes, stream: Stream | None = None) -> None:
        """As `Device`."""
        self._copy("cuMemcpyHtoDAsync_v2", target, source.ctypes.data, source.size, stream)

    def copy_out(self, target: Bytes, source: int, stream: Stream | None = None) -> None:
        """As `Device`."""
        self._copy("cuMemcpyDtoHAsync_v2", target.ctypes.data, source, target.size, stream)

    def copy_within(self, target: int, source: int, size: int, stream: Stream | None = None) -> None:
        """As `Device`."""
        self._copy("cuMemcpyDtoDAsync_v2", target, source, size, stream)

    def export_ipc(self, address: int) -> IpcAddress:
        """As `Device`. A handle stands for the whole allocation, which may be another owner's: a framework's, or the pool."""
        base, _ = self._allocation(address)
        handle = _IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.pointer(handle), base)
        return IpcAddress(bytes(handle), address - base)

    def open_ipc(self, handle: bytes) -> DeviceMemory:
        """As `Device`."""
        if len(handle) != IPC_HANDLE_BYTES:
            raise InvalidArgument("invalid args")
        address = ctypes.c_uint64()
        try:
            self.call("cuIpcOpenMemHandle_v2", ctypes.pointer(address), _IpcHandle.from_buffer_copy(handle), _LAZY_PEER_ACCESS)
        except Internal as error:
            raise InvalidArgument(error.message) from None
        memory = DeviceMemory(self, address.value, 0, release=partial(self.call_quietly, "cuIpcCloseMemHandle", address.value))
        base, size = self._allocation(address.value)
        memory.size = base + size - address.value
        return memory

    def _allocation(self, address: int) -> tuple[int, int]:
        """Returns the begin and the size of the allocation that an address is in."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.pointer(base), ctypes.pointer(size), address)
        return base.value, size.value

    def _copy(self, name: str, target: int, source: int, size: int, stream: Stream | None) -> None:
        """Without a stream of the caller's in one of this thread's own, so that it waits for nobody else's work."""
        if not size:
            return
        used = stream
        if used is None:
            used = getattr(self._copying, "stream", None)
            if used is None:
                used = self._copying.stream = self.stream()
        self.call(name, target, source, size, used.handle)
        if stream is None:
            used.synchronize()

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self._require(self._driver.cuCtxPushCurrent_v2(self._context), "cuCtxPushCurrent")
        try:
            yield
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.pointer(ctypes.c_void_p()))

    def _require(self, code: int, name: str) -> None:
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._driver.cuGetErrorString(code, ctypes.pointer(text))
        reason = f"GPU {self.id}: {name}: {(text.value or b'CUDA error %d' % code).decode()}"
        raise Unavailable(reason) if code == _OUT_OF_MEMORY else Internal(reason)
