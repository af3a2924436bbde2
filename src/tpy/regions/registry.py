"""The regions of one server, in host memory and in a GPU's."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from itertools import count
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import trio

from tpy.devices import NO_DEVICES, DeviceArray, DeviceMemory, Devices
from tpy.echo import echo
from tpy.errors import AlreadyExists, Internal, InvalidArgument, NotFound, TpyError, Unavailable, Unsupported
from tpy.limits import REGION_NAME_CHARACTERS_MAX, REGIONS_MAX, REGIONS_OPEN_FILES_SHARE
from tpy.messages import CudaRegistration, RegionFacts, RegionKind, Registration, SystemRegistration
from tpy.regions.region import Bytes, Region, RegionCopies, SegmentRegion
from tpy.regions.segments import RESERVED_PREFIX, open_segment

_numbers = count(1)


class DeviceRegion:
    """A `Region` over memory of a client's, opened by its CUDA IPC handle for as long as anyone refers to the region. `number` is
    its own: no other region of this process has it, whatever their names."""

    __slots__ = ("_devices", "_memory", "copies", "facts", "number")

    def __init__(self, facts: RegionFacts, memory: DeviceMemory, copies: RegionCopies, devices: Devices) -> None:
        """Copies on the device are in memory of `devices`."""
        self.facts = facts
        self.number = next(_numbers)
        self.copies = copies
        self._memory = memory
        self._devices = devices

    def read(self, offset: int, size: int) -> Bytes:
        """As `Region.read`."""
        copy = self.copies.allocate(size)
        self.read_into(copy, offset)
        return copy

    def read_into(self, target: Bytes, offset: int) -> None:
        """As `Region.read_into`."""
        self._memory.device.copy_out(target, self._memory.address + offset)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """As `Region.write`."""
        self._memory.device.copy_in(self._memory.address + offset, np.frombuffer(data, np.uint8))

    def on_device(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
        """Returns a copy of an array in the region, on its device. Raises Unavailable when that has no memory, Internal when it
        fails."""
        return self._devices.copy(DeviceArray(self._memory, shape, dtype, offset))

    def take(self, offset: int, array: DeviceArray) -> None:
        """Copy an array to `offset`, where there is room for it: on the device if it is on the same one. Raises as
        `on_device`."""
        memory = self._memory
        if array.memory.device.id == memory.device.id:
            memory.device.copy_within(memory.address + offset, array.address, array.nbytes)
        else:
            self.write(offset, array.to_host().reshape(-1).view(np.uint8).data)


DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class RegionRegistry:
    """Implements tpy.services.SharedMemoryService: the one owner of what clients registered. Texts and codes are Triton's."""

    def __init__(self, devices: Devices = NO_DEVICES, *, enabled: bool = True) -> None:
        """Memory of GPUs can be registered for the ones in `devices`."""
        self._devices = devices
        self._enabled = enabled
        self._copies = RegionCopies()
        self._regions: dict[str, Region] = {}
        self.regions: Mapping[str, Region] = MappingProxyType(self._regions)

    def require_enabled(self) -> None:
        """See SharedMemoryService."""
        if not self._enabled:
            raise Unsupported(DISABLED)

    async def register(self, registration: Registration) -> None:
        """See SharedMemoryService."""
        self.require_enabled()
        self._require_name(registration)
        match registration:
            case SystemRegistration():
                self._register_system(registration)
            case CudaRegistration():
                await self._register_cuda(registration)

    async def unregister(self, kind: RegionKind, name: str = "") -> None:
        """See SharedMemoryService."""
        self.require_enabled()
        for found in [name] if name else list(self._regions):
            region = self._regions.get(found)
            if region is not None and region.facts.kind is kind:
                del self._regions[found]

    async def _register_cuda(self, asked: CudaRegistration) -> None:
        self._require_new(asked.name)
        self._require_room()
        try:
            device = self._devices.get(asked.device_id)
            memory = await trio.to_thread.run_sync(device.open_ipc, asked.raw_handle)
        except TpyError:
            memory = None
        if memory is None or not 0 < asked.byte_size <= memory.size:
            raise InvalidArgument("failed to register shared memory region: invalid args")
        self._require_new(asked.name)  # others may have come in between
        facts = RegionFacts(
            name=asked.name, kind=RegionKind.CUDA, key="", offset=0, byte_size=asked.byte_size, device_id=asked.device_id
        )
        self._regions[asked.name] = DeviceRegion(facts, memory, self._copies, self._devices)

    def _register_system(self, asked: SystemRegistration) -> None:
        _require_foreign(asked)
        self._require_new(asked.name)
        self._require_room()
        descriptor = _open(asked.key)
        try:
            _require_range(asked, os.fstat(descriptor).st_size)
        except BaseException:
            os.close(descriptor)
            raise
        facts = RegionFacts(
            name=asked.name, kind=RegionKind.SYSTEM, key=asked.key, offset=asked.offset, byte_size=asked.byte_size
        )
        self._regions[asked.name] = SegmentRegion(facts, descriptor, self._copies)

    def _require_room(self) -> None:
        most = _regions_max()
        if len(self._regions) >= most:
            raise Unavailable(f"{len(self._regions)} shared memory regions are registered, at most {most} are accepted")

    def _require_name(self, asked: Registration) -> None:
        if not asked.name:
            kind = RegionKind.SYSTEM if isinstance(asked, SystemRegistration) else RegionKind.CUDA
            raise InvalidArgument(f"'region name' is necessary to register {kind.value} shared memory region")
        if len(asked.name) > REGION_NAME_CHARACTERS_MAX:
            raise InvalidArgument(
                f"the name of a shared memory region has {len(asked.name)} characters, at most {REGION_NAME_CHARACTERS_MAX} are "
                "accepted"
            )

    def _require_new(self, name: str) -> None:
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{echo(name)}' already in manager")


def registered(regions: Mapping[str, Region], kind: RegionKind, name: str = "") -> list[RegionFacts]:
    """Returns what a status shows: the region `name`, or all of this kind, by name. Raises NotFound without such a
    region."""
    if not name:
        return [region.facts for _, region in sorted(regions.items()) if region.facts.kind is kind]
    region = regions.get(name)
    if region is None:
        raise NotFound(f"Unable to find {kind.value} shared memory region: '{echo(name)}'")
    if region.facts.kind is not kind:
        words = {RegionKind.SYSTEM: "system", RegionKind.CUDA: "CUDA"}
        raise NotFound(
            f"The region named '{echo(name)}' is registered as {words[region.facts.kind]} shared memory, not {words[kind]} "
            "shared memory"
        )
    return [region.facts]


def _regions_max() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return REGIONS_MAX if files == resource.RLIM_INFINITY else min(REGIONS_MAX, int(files * REGIONS_OPEN_FILES_SHARE))


def _require_foreign(asked: SystemRegistration) -> None:
    """Raise InvalidArgument for a key that is a server's own, or none."""
    name = asked.key.lstrip("/")
    if not name:
        raise InvalidArgument(f"cannot register shared memory region '{echo(asked.name)}' - invalid shm key '{echo(asked.key)}'")
    if name.startswith(RESERVED_PREFIX):
        raise InvalidArgument(
            f"cannot register shared memory region '{echo(asked.name)}' with key '{echo(asked.key)}' as the key contains the "
            f"reserved prefix '{RESERVED_PREFIX}'"
        )


def _open(key: str) -> int:
    try:
        return open_segment(key)
    except (OSError, ValueError):
        raise Internal(f"Unable to open shared memory region: '{echo(key)}'") from None


def _require_range(asked: SystemRegistration, segment_bytes: int) -> None:
    """Raise InvalidArgument unless the range lies within the segment and could be mapped, as Triton does."""
    if asked.offset + asked.byte_size > segment_bytes:
        _refuse(asked, "invalid args")
    if not asked.byte_size or asked.offset % _PAGE_BYTES:
        _refuse(asked, "unable to process address spaceInvalid argument")


def _refuse(asked: SystemRegistration, problem: str) -> NoReturn:
    raise InvalidArgument(f"failed to register shared memory region '{echo(asked.name)}': {problem}")
