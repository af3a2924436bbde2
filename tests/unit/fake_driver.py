"""A CUDA driver that is none: the functions of libcuda that are used, over host memory. They are called as ctypes would call the
library's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_TEXTS = {1: b"invalid argument", 2: b"out of memory", 999: b"device lost"}


class FakeDriver:
    """`open` are the allocations, streams and handles that were not given back, `contexts` the pushed contexts. `lost`: from now
    on everything fails. `captured` are the copies of a graph that is being captured, `priorities` those of all streams."""

    def __init__(self, *, memory_bytes: int = 1 << 24) -> None:
        self.open: dict[int, Any] = {}
        self.contexts: list[Any] = []
        self.lost = False
        self.captured: list[tuple[int, int, int]] | None = None
        self.priorities: list[int] = []
        self._room = memory_bytes
        self._numbers = 1000

    def __getattr__(self, name: str) -> Callable[..., int]:
        function: Callable[..., int] | None = _FUNCTIONS.get(name)
        if function is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            if self.lost and name not in ("cuGetErrorString", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"):
                return 999
            return function(self, *arguments)

        return call

    def allocate(self, out: Any, size: int) -> int:
        if size > self._room:
            return 2
        self._room -= size
        memory = (ctypes.c_uint8 * size)()
        address = ctypes.addressof(memory)
        self.open[address] = memory
        out.contents.value = address
        return 0

    def free(self, address: int) -> int:
        self._room += len(self.open.pop(address))
        return 0

    def base_of(self, address: int) -> tuple[int, int]:
        for base, memory in self.open.items():
            if isinstance(memory, ctypes.Array) and base <= address < base + len(memory):
                return base, len(memory)
        return 0, 0

    def number(self, out: Any) -> int:
        self._numbers += 1
        self.open[self._numbers] = "stream"
        out.contents.value = self._numbers
        return 0


def _error(driver: FakeDriver, code: int, out: Any) -> int:
    out.contents.value = _TEXTS[code]
    return 0


def _push(driver: FakeDriver, context: Any) -> int:
    driver.contexts.append(context)
    return 0


def _pop(driver: FakeDriver, out: Any) -> int:
    driver.contexts.pop()
    return 0


def _set(value: int) -> Callable[..., int]:
    def function(driver: FakeDriver, out: Any, *_: Any) -> int:
        out.contents.value = value
        return 0

    return function


def _copy(driver: FakeDriver, target: int, source: int, size: int, stream: int) -> int:
    if driver.open.get(stream) != "stream" or not driver.contexts:
        return 1
    if driver.captured is not None:
        driver.captured.append((target, source, size))
        return 0
    ctypes.memmove(target, source, size)
    return 0


def _begin_capture(driver: FakeDriver, stream: int, mode: int) -> int:
    driver.captured = []
    return 0


def _end_capture(driver: FakeDriver, stream: int, out: Any) -> int:
    driver.number(out)
    driver.open[out.contents.value], driver.captured = driver.captured, None
    return 0


def _instantiate(driver: FakeDriver, out: Any, graph: Any, flags: int) -> int:
    driver.number(out)
    driver.open[out.contents.value] = driver.open[graph.value]
    return 0


def _launch(driver: FakeDriver, graph: int, stream: int) -> int:
    for target, source, size in driver.open[graph]:
        ctypes.memmove(target, source, size)
    return 0


def _priorities(driver: FakeDriver, last: Any, first: Any) -> int:
    last.contents.value, first.contents.value = 0, -5
    return 0


def _stream(driver: FakeDriver, out: Any, flags: int, priority: int) -> int:
    driver.priorities.append(priority)
    return driver.number(out)


def _range(driver: FakeDriver, base: Any, size: Any, address: int) -> int:
    base.contents.value, size.contents.value = driver.base_of(address)
    return 0 if base.contents.value else 1


def _get_handle(driver: FakeDriver, out: Any, address: int) -> int:
    ctypes.memmove(ctypes.addressof(out.contents), b"handle" + address.to_bytes(8, "little") + b"\1" * 50, 64)
    return 0


def _open_handle(driver: FakeDriver, out: Any, handle: Any, flags: int) -> int:
    raw = bytes(handle)
    if not raw.startswith(b"handle"):
        return 1
    out.contents.value = int.from_bytes(raw[6:14], "little")
    return 0


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "cuInit": lambda driver, flags: 0,
    "cuGetErrorString": _error,
    "cuDeviceGet": _set(0),
    "cuDevicePrimaryCtxRetain": _set(77),
    "cuCtxPushCurrent_v2": _push,
    "cuCtxPopCurrent_v2": _pop,
    "cuCtxSynchronize": lambda driver: 0,
    "cuMemAlloc_v2": FakeDriver.allocate,
    "cuMemFree_v2": FakeDriver.free,
    "cuMemHostAlloc": lambda driver, out, size, flags: driver.allocate(out, size),
    "cuMemFreeHost": FakeDriver.free,
    "cuMemcpyHtoDAsync_v2": _copy,
    "cuMemcpyDtoHAsync_v2": _copy,
    "cuMemcpyDtoDAsync_v2": _copy,
    "cuCtxGetStreamPriorityRange": _priorities,
    "cuStreamCreateWithPriority": _stream,
    "cuStreamSynchronize": lambda driver, stream: 0 if stream in driver.open else 1,
    "cuStreamDestroy_v2": lambda driver, stream: 0 if driver.open.pop(stream) else 1,
    "cuMemGetAddressRange_v2": _range,
    "cuIpcGetMemHandle": _get_handle,
    "cuIpcOpenMemHandle_v2": _open_handle,
    "cuIpcCloseMemHandle": lambda driver, address: 0,
    "cuStreamBeginCapture_v2": _begin_capture,
    "cuStreamEndCapture": _end_capture,
    "cuGraphInstantiateWithFlags": _instantiate,
    "cuGraphLaunch": _launch,
    "cuGraphExecDestroy": lambda driver, graph: 0 if driver.open.pop(graph) else 1,
    "cuGraphDestroy": lambda driver, graph: 0 if driver.open.pop(graph.value) is not None else 1,
}
