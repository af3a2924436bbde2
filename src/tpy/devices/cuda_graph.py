"""CUDA graphs: work of a stream that is recorded once, and queued as a whole."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Protocol

from tpy.devices.device import Stream

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads do is no concern of the recording

GRAPH_SIGNATURES = {
    "cuStreamBeginCapture_v2": (ctypes.c_void_p, ctypes.c_int),
    "cuStreamEndCapture": (ctypes.c_void_p, ctypes.c_void_p),
    "cuGraphInstantiateWithFlags": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong),
    "cuGraphLaunch": (ctypes.c_void_p, ctypes.c_void_p),
    "cuGraphExecDestroy": (ctypes.c_void_p,),
    "cuGraphDestroy": (ctypes.c_void_p,),
}
"""The functions of cuda.h that are used here: argument types."""


class Driver(Protocol):
    """Calls the driver's functions in a device's context (`CudaDevice`)."""

    def call(self, name: str, *arguments: object) -> None:
        """Raises TpyError."""
        ...

    def call_quietly(self, name: str, *arguments: object) -> None:
        """The same, for what is given back."""
        ...


class CudaGraph:
    """Implements `Graph`."""

    def __init__(self, driver: Driver, handle: int | None) -> None:
        self._driver = driver
        self._handle = handle
        weakref.finalize(self, driver.call_quietly, "cuGraphExecDestroy", handle).atexit = False

    def launch(self, stream: Stream) -> None:
        """As `Graph`."""
        self._driver.call("cuGraphLaunch", self._handle, stream.handle)


def capture(driver: Driver, stream: Stream, record: Callable[[], None]) -> CudaGraph:
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
    return CudaGraph(driver, executable.value)
