"""Shared memory with clients, as callers register it (the shared memory extensions)."""

from __future__ import annotations

import enum

import msgspec


class RegionKind(enum.Enum):
    """The memory that a region is in; the value is Triton's word in texts."""

    SYSTEM = "system"
    CUDA = "cuda"


class SystemRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """Registers the range of `byte_size` bytes at `offset` of the POSIX shared memory segment `key` under `name`."""

    name: str
    key: str
    offset: int
    byte_size: int


class CudaRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """Registers memory of a GPU, given by its CUDA IPC handle, under `name`."""

    name: str
    raw_handle: bytes
    device_id: int
    byte_size: int


Registration = SystemRegistration | CudaRegistration


class RegionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a registered region. `offset` and `byte_size` are the range within the segment `key`. `device_id` is that of
    memory of a GPU, which has no key."""

    name: str
    kind: RegionKind
    key: str
    offset: int
    byte_size: int
    device_id: int = 0

    @property
    def gpu(self) -> int | None:
        """The GPU whose memory it is in, None for the host's."""
        return self.device_id if self.kind is RegionKind.CUDA else None
