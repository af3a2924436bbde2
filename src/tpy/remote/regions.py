"""The regions that clients registered, in a frontend process: segments are opened once more, memory of GPUs is not."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import trio

from tpy.limits.remote import REMOTE_REGION_BYTES_MAX
from tpy.messages import RegionFacts
from tpy.regions import Bytes, Region, RegionArray, RegionCopies, SegmentRegion, reopen_segment
from tpy.remote.core import messages as m
from tpy.remote.core import questions as q
from tpy.remote.core.replica import AnyRegionEntry, DeviceRegionEntry

_log = logging.getLogger(__name__)

Ask = Callable[[q.Question, Any], Awaitable[Any]]
"""As EngineLink.ask."""


class RemoteDeviceRegion:
    """A `Region` in a GPU's memory, which the engine has open and copies from and to. Copies are for threads that Trio started:
    each waits for the engine."""

    __slots__ = ("__weakref__", "_ask", "copies", "facts", "number")

    def __init__(self, facts: RegionFacts, number: int, copies: RegionCopies, ask: Ask) -> None:
        self.facts = facts
        self.number = number
        self.copies = copies
        self._ask = ask

    def read(self, offset: int, size: int) -> Bytes:
        """As `Region.read`."""
        copy = self.copies.allocate(size)
        self.read_into(copy, offset)
        return copy

    def read_into(self, target: Bytes, offset: int) -> None:
        """As `Region.read_into`."""
        for begin in range(0, target.size, REMOTE_REGION_BYTES_MAX):
            part = target[begin : begin + REMOTE_REGION_BYTES_MAX]
            question = q.ReadRegion(q.RegionOffset(self.number, offset + begin), part.size)
            part[:] = np.frombuffer(trio.from_thread.run(self._ask, question, bytes), np.uint8)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """As `Region.write`."""
        for begin in range(0, len(data), REMOTE_REGION_BYTES_MAX):
            part = bytes(data[begin : begin + REMOTE_REGION_BYTES_MAX])
            question = q.WriteRegion(q.RegionOffset(self.number, offset + begin), part)
            trio.from_thread.run(self._ask, question, type(None))


class RegionReplicas:
    """`opened` is what is registered, by name. The engine is told when nobody refers any more to a region in a GPU's memory.
    Made in a Trio run."""

    def __init__(self, ask: Ask, send: Callable[[m.ForgetRegion], None]) -> None:
        self._ask = ask
        self._send = send
        self._token = trio.lowlevel.current_trio_token()
        self._copies = RegionCopies()
        self._regions: dict[str, Region] = {}
        self.opened: Mapping[str, Region] = MappingProxyType(self._regions)

    def update(self, changed: Mapping[str, AnyRegionEntry | None]) -> None:
        """Take what has changed. A segment that cannot be opened is not there: it was unregistered meanwhile, or there are no
        open files left, which the log says."""
        for name, entry in changed.items():
            self._regions.pop(name, None)
            if isinstance(entry, DeviceRegionEntry):
                self._regions[name] = region = RemoteDeviceRegion(entry.facts, entry.number, self._copies, self._ask)
                weakref.finalize(region, self._forget, entry.number).atexit = False
            elif entry is not None:
                try:
                    descriptor = reopen_segment(entry.pid, entry.descriptor, entry.identity)
                except OSError as error:
                    _log.warning(
                        "shared memory region '%(region)s' cannot be opened: %(reason)s", {"region": name, "reason": error}
                    )
                    continue
                self._regions[name] = SegmentRegion(entry.facts, descriptor, self._copies)

    def _forget(self, number: int) -> None:
        """Wherever the last reference was: in a codec's thread, or in the middle of anything on the loop."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._send, m.ForgetRegion(number))


def region_offset(array: object) -> q.RegionOffset:
    """See core.tensors.Refer. Raises ValueError for an array that is anywhere else."""
    if isinstance(array, RegionArray):
        region: Region = array.memory.region
        if isinstance(region, RemoteDeviceRegion):
            return q.RegionOffset(region.number, array.offset)
    raise ValueError("an array that is not in host memory")
