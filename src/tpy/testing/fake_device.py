"""FakeDevice: host memory that calls itself a GPU, and counts what is done with it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np

from tpy import dlpack
from tpy.devices.device import Bytes, DeviceMemory, Graph, IpcAddress, Stream
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy.testing import fake_sharing

_HANDLE, _MAGIC = fake_sharing.HANDLE, fake_sharing.MAGIC


class FakeStream:
    """Copies are done at once; only `FakeDevice.counts` knows whether anybody waited for them."""

    handle = 0

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    def synchronize(self) -> None:
        """As `Stream`."""
        self._device.counts["synchronize"] += 1
        if self._device.lost:
            raise Internal("the device was lost")


class FakeGraph:
    """Work that was submitted while it was captured."""

    def __init__(self, device: FakeDevice, recorded: Sequence[Callable[[], None]]) -> None:
        self._device = device
        self._recorded = recorded

    def launch(self, stream: Stream) -> None:
        """As `Graph`."""
        self._device.counts["launches"] += 1
        for work in self._recorded:
            work()


class FakeDevice:
    """Implements `Device`. `counts` has the copies by direction ("in", "out", "within"), and the bytes of each ("in bytes"), the
    streams and how often one was waited for, the graphs and their launches, the allocations, and `open`: allocations that are not
    freed; `opened`: open allocations of other processes. Allocations are files without a name, so that other processes can
    open them by their handles. What waits for a device that is `lost` fails."""

    def __init__(self, device_id: int = 0, *, memory_bytes: int = 1 << 30) -> None:
        self.id = device_id
        self.dlpack_type = dlpack.CPU  # which is true
        self.sharing_module = Path(fake_sharing.__file__)
        self.counts: Counter[str] = Counter()
        self.lost = False
        self._room = memory_bytes
        self._files: dict[int, tuple[int, int]] = {}
        self._recording: list[Callable[[], None]] | None = None

    def current(self) -> AbstractContextManager[None]:
        """As `Device`."""
        return nullcontext()

    def stream(self, priority: int = 0) -> Stream:
        """As `Device`."""
        self.counts["streams"] += 1
        self.counts[f"streams of priority {priority}"] += 1
        return FakeStream(self)

    def capture(self, stream: Stream, record: Callable[[], None]) -> Graph:
        """As `Device`, of what was given to `submit`."""
        self._recording = recorded = list[Callable[[], None]]()
        try:
            record()
        finally:
            self._recording = None
        self.counts["graphs"] += 1
        return FakeGraph(self, recorded)

    @property
    def recording(self) -> bool:
        """True while a graph is being captured."""
        return self._recording is not None

    def submit(self, work: Callable[[], None]) -> None:
        """Do work of the device's: at once, or whenever the graph that is being captured is launched."""
        if self._recording is None:
            work()
        else:
            self._recording.append(work)

    def allocate(self, size: int) -> DeviceMemory:
        """As `Device`."""
        if size > self._room:
            raise Unavailable(f"GPU {self.id}: out of memory")
        length = max(1, size)
        descriptor = os.memfd_create("tpy-fake-device", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, length)
        memory = np.frombuffer(mmap.mmap(descriptor, length), np.uint8)
        address = memory.ctypes.data
        self._room -= size
        self._files[address] = (descriptor, length)
        self.counts["allocations"] += 1
        self.counts["open"] += 1

        def release() -> None:
            del self._files[address]
            os.close(descriptor)
            self._room += size
            self.counts["open"] -= 1

        return DeviceMemory(self, address, size, owner=memory, release=release)

    def allocate_pinned(self, size: int) -> Bytes:
        """As `Device`."""
        self.counts["pinned allocations"] += 1
        return np.empty(size, np.uint8)

    def copy_in(self, target: int, source: Bytes, stream: Stream | None = None) -> None:
        """As `Device`."""
        self._count("in", source.size)
        _at(target, source.size)[:] = source

    def copy_out(self, target: Bytes, source: int, stream: Stream | None = None) -> None:
        """As `Device`."""
        self._count("out", target.size)
        target[:] = _at(source, target.size)

    def copy_within(self, target: int, source: int, size: int, stream: Stream | None = None) -> None:
        """As `Device`."""
        self._count("within", size)
        _at(target, size)[:] = _at(source, size)

    def export_ipc(self, address: int) -> IpcAddress:
        """As `Device`. CUDA knows the allocation that an address is in; so do we."""
        for base, (descriptor, length) in list(self._files.items()):
            if base <= address < base + length:
                return IpcAddress(_HANDLE.pack(_MAGIC, os.getpid(), descriptor, length), address - base)
        raise InvalidArgument("invalid argument")

    def open_ipc(self, handle: bytes) -> DeviceMemory:
        """As `Device`."""
        memory = map_fake_ipc(handle)
        self.counts["opened"] += 1

        def release() -> None:
            self.counts["opened"] -= 1

        return DeviceMemory(self, memory.ctypes.data, memory.size, owner=memory, release=release)

    def _count(self, direction: str, size: int) -> None:
        self.counts[direction] += 1
        self.counts[f"{direction} bytes"] += size


def map_fake_ipc(handle: bytes) -> Bytes:
    """Returns the memory that a handle of a FakeDevice, of any process, stands for. Raises InvalidArgument for another handle."""
    if len(handle) != _HANDLE.size or not handle.startswith(_MAGIC):
        raise InvalidArgument("invalid args")
    _, pid, number, length = _HANDLE.unpack(handle)
    try:
        descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        raise InvalidArgument("invalid args") from None
    try:
        return np.frombuffer(mmap.mmap(descriptor, length), np.uint8)
    except (OSError, ValueError):
        raise InvalidArgument("invalid args") from None
    finally:
        os.close(descriptor)


def _at(address: int, size: int) -> Bytes:
    """The memory itself."""
    memory: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    return memory
