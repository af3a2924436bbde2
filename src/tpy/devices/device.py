"""Device: what the server needs of a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class IpcAddress(NamedTuple):
    """An address in another process's memory: the handle of an allocation, and where in it."""

    handle: bytes
    offset: int


class Stream(Protocol):
    """A queue of work on a device. It is given back when nobody refers to it."""

    @property
    def handle(self) -> int:
        """CUDA's, for runtimes that are to work in it."""
        ...

    def synchronize(self) -> None:
        """Wait until all that was queued is done."""
        ...


class Graph(Protocol):
    """Work that was recorded once, and is queued as a whole. It refers to the memory that it was recorded with."""

    def launch(self, stream: Stream) -> None:
        """Queue it. Raises Internal when the device fails."""
        ...


class Device(Protocol):
    """One GPU. Any thread. Copies are done when they return, but those with a stream, which are queued there; the memory of those
    must stay until the stream is synchronized. All methods raise Unavailable when there is no memory, Internal when the device
    fails."""

    @property
    def id(self) -> int:
        """CUDA's number for it in this process."""
        ...

    @property
    def dlpack_type(self) -> int:
        """The type of its memory in DLPack: CUDA's, or the CPU's when the device only pretends."""
        ...

    @property
    def sharing_module(self) -> Path:
        """The Python file, without imports of ours, by which processes of others open and share such memory (`cuda_ipc`)."""
        ...

    def current(self) -> AbstractContextManager[None]:
        """Makes it the current device of this thread, for runtimes that ask CUDA which one that is."""
        ...

    def stream(self, priority: int = 0) -> Stream:
        """Returns a new stream. The work of one with a priority above 0 goes before that of others, below 0 behind it, where the
        device has priorities."""
        ...

    def capture(self, stream: Stream, record: Callable[[], None]) -> Graph:
        """Record what `record` queues in the stream, without doing it. Raises Internal for work that cannot be recorded, and
        whatever `record` raises. It must not wait for anything."""
        ...

    def allocate(self, size: int) -> DeviceMemory:
        """Returns memory of the device, which is freed when nobody refers to it."""
        ...

    def allocate_pinned(self, size: int) -> Bytes:
        """Returns host memory that the device copies from and to by itself, freed when nobody refers to it."""
        ...

    def copy_in(self, target: int, source: Bytes, stream: Stream | None = None) -> None:
        """Copy from the host to an address on the device."""
        ...

    def copy_out(self, target: Bytes, source: int, stream: Stream | None = None) -> None:
        """Copy from an address on the device to the host."""
        ...

    def copy_within(self, target: int, source: int, size: int, stream: Stream | None = None) -> None:
        """Copy between two addresses on the device."""
        ...

    def export_ipc(self, address: int) -> IpcAddress:
        """Returns where other processes find what is at this address, for as long as it is there."""
        ...

    def open_ipc(self, handle: bytes) -> DeviceMemory:
        """Returns an allocation of another process, by its handle. Raises InvalidArgument for an invalid handle."""
        ...


class DeviceMemory:
    """A range of a device's memory. `release` is called when nobody refers to it any more; `owner` is kept until then."""

    __slots__ = ("__weakref__", "_owner", "address", "device", "size")

    def __init__(
        self,
        device: Device,
        address: int,
        size: int,
        *,
        owner: object = None,
        release: Callable[[], object] | None = None,
    ) -> None:
        self.device = device
        self.address = address
        self.size = size
        self._owner = owner
        if release is not None:
            weakref.finalize(self, release).atexit = False
