"""Memory of a FakeDevice shared between processes, as `tpy.devices.cuda_ipc` does it with that of a GPU: files without a name,
which are opened by the process that has them. Nothing of ours is imported: workers import this file by its path."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable

HANDLE = struct.Struct("<8siiq40x")
MAGIC = b"tpy-fake"


class FakeSharing:
    """`opened` are the allocations of others that are open, by address; `own` those of this process."""

    def __init__(self) -> None:
        self.opened: dict[int, mmap.mmap] = {}
        self.own: dict[int, tuple[int, mmap.mmap]] = {}

    def allocate(self, size: int) -> int:
        """Returns the address of new memory of the device. It is never freed."""
        descriptor = os.memfd_create("tpy-fake-device")
        os.ftruncate(descriptor, size)
        memory = mmap.mmap(descriptor, size)
        address = _address(memory)
        self.own[address] = descriptor, memory
        return address

    def open(self, device_id: int, handle: bytes) -> tuple[int, int, Callable[[], None]]:
        """As `CudaSharing.open`."""
        magic, pid, number, length = HANDLE.unpack(handle)
        if magic != MAGIC:
            raise OSError("invalid args")
        descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        memory = mmap.mmap(descriptor, length)
        os.close(descriptor)
        address = _address(memory)
        self.opened[address] = memory

        def close() -> None:
            del self.opened[address]

        return address, length, close

    def share(self, device_id: int, address: int) -> tuple[bytes, int]:
        """As `CudaSharing.share`."""
        for base, (descriptor, memory) in self.own.items():
            if base <= address < base + len(memory):
                return HANDLE.pack(MAGIC, os.getpid(), descriptor, len(memory)), address - base
        raise OSError("invalid argument")


_MADE = FakeSharing()


def make() -> FakeSharing:
    """Returns the one of this process, as there is one driver."""
    return _MADE


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_uint8.from_buffer(memory))
