"""Memory of NVIDIA GPUs shared between processes, for a process that has nothing but Python: this file is imported there by its
path (`Device.sharing_module`), and must import nothing of ours.

A module of this kind has `make()`, which returns an object with the methods of CudaSharing.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

_LIBRARY = "libcuda.so.1"
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
HANDLE_BYTES = 64


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuGetErrorString": (ctypes.c_int, ctypes.c_void_p),
    "cuDeviceGet": (ctypes.c_void_p, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.c_void_p, ctypes.c_int),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuCtxPopCurrent_v2": (ctypes.c_void_p,),
    "cuCtxSynchronize": (),
    "cuMemGetAddressRange_v2": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64),
    "cuIpcGetMemHandle": (ctypes.c_void_p, ctypes.c_uint64),
    "cuIpcOpenMemHandle_v2": (ctypes.c_void_p, _Handle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (ctypes.c_uint64,),
}


def make() -> CudaSharing:
    """Returns the way to the driver. Raises OSError without one."""
    library = ctypes.CDLL(_LIBRARY)
    for name, types in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise OSError(f"the CUDA driver has no {name}") from error
        function.argtypes, function.restype = types, ctypes.c_int
    return CudaSharing(library)


class CudaSharing:
    """Opens and shares memory, in the primary context, which frameworks use too. Any thread. Every method raises OSError with the
    driver's reason."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def open(self, device_id: int, handle: bytes) -> tuple[int, int, Callable[[], None]]:
        """Returns the address and the size of another process's allocation, and how to close it."""
        if len(handle) != HANDLE_BYTES:
            raise OSError(f"a handle of {len(handle)} bytes")
        address = ctypes.c_uint64()
        raw = _Handle.from_buffer_copy(handle)
        self._call(device_id, "cuIpcOpenMemHandle_v2", ctypes.pointer(address), raw, _LAZY_PEER_ACCESS)
        base, size = self._allocation(device_id, address.value)
        opened = address.value

        def close() -> None:
            self._call(device_id, "cuIpcCloseMemHandle", opened)

        return opened, base + size - opened, close

    def share(self, device_id: int, address: int) -> tuple[bytes, int]:
        """Returns the handle of the allocation that an address of this process's is in, and where in it, once all work of this
        process on the device is done."""
        self._call(device_id, "cuCtxSynchronize")
        base, _ = self._allocation(device_id, address)
        handle = _Handle()
        self._call(device_id, "cuIpcGetMemHandle", ctypes.pointer(handle), base)
        return bytes(handle), address - base

    def _allocation(self, device_id: int, address: int) -> tuple[int, int]:
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call(device_id, "cuMemGetAddressRange_v2", ctypes.pointer(base), ctypes.pointer(size), address)
        return base.value, size.value

    def _call(self, device_id: int, name: str, *arguments: Any) -> None:
        self._require(self._driver.cuCtxPushCurrent_v2(self._context(device_id)), "cuCtxPushCurrent")
        try:
            code = getattr(self._driver, name)(*arguments)
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.pointer(ctypes.c_void_p()))
        self._require(code, name)

    def _context(self, device_id: int) -> ctypes.c_void_p:
        with self._lock:
            context = self._contexts.get(device_id)
            if context is None:
                self._require(self._driver.cuInit(0), "cuInit")
                ordinal, context = ctypes.c_int(), ctypes.c_void_p()
                self._require(self._driver.cuDeviceGet(ctypes.pointer(ordinal), device_id), "cuDeviceGet")
                code = self._driver.cuDevicePrimaryCtxRetain(ctypes.pointer(context), ordinal)
                self._require(code, "cuDevicePrimaryCtxRetain")
                self._contexts[device_id] = context
            return context

    def _require(self, code: int, name: str) -> None:
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.pointer(text))
            raise OSError(f"{name}: {(text.value or b'CUDA error %d' % code).decode()}")
