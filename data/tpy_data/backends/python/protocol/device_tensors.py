"""DeviceTensors: tensors on devices that cross the border of a worker's process, by handle (`worker/link/device_memory.py`).

A worker is lent what the server has, and keeps it as long as it likes. What a worker shows is copied at once, to memory of the
server's on the same device or to the host, so that nothing depends on its life.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpy.devices import DeviceArray, Devices
from tpy.errors import TpyError
from tpy_data.backends.python.worker.wire.core import datatypes
from tpy_data.backends.python.worker.wire.core.batch import RANK_MAX, Descriptor
from tpy_data.backends.python.worker.wire.core.datatypes import size_of
from tpy_data.backends.python.worker.wire.core.frames import ProtocolViolation
from tpy_data.backends.python.worker.wire.endpoint import Endpoint

_WHERE = re.compile(r"([0-9]{1,4}) ([0-9]{1,18}) (?:@([0-9]{1,18})|((?:[0-9a-f]{2}){1,256}))", re.ASCII)
"""Device, loan, and the server's loan or a handle."""


class DeviceTensors:
    """One per connection. Any thread, but never the loop: copies are waited for."""

    def __init__(self, endpoint: Endpoint, devices: Devices) -> None:
        self._endpoint = endpoint
        self._devices = devices

    def lend(self, array: Any) -> tuple[str, int, int]:
        """As `Lending.lend`, of a DeviceArray. Raises TpyError for memory that cannot be shared."""
        device = array.memory.device
        handle, offset = device.export_ipc(array.address)
        loan = self._endpoint.lend_memory((array, array.address - offset))
        return f"{device.id} {loan} {handle.hex()}", offset, loan

    def forget(self, loans: Sequence[int]) -> None:
        """As `Lending.forget`."""
        self._endpoint.forget(loans)

    def take(self, descriptor: Descriptor, *, stays: bool) -> Any:
        """A copy of a tensor that the worker shows: on its device if it `stays`, else in host memory. Raises ProtocolViolation
        for what is not such a tensor, TpyError when there is no memory."""
        name, number, shape, where, offset, size = descriptor
        found = _WHERE.fullmatch(str(where))
        dtype = datatypes.STORAGE_OF_NUMBER.get(number)
        if found is None or dtype is None or len(shape) > RANK_MAX or min(shape, default=0) < 0 or offset < 0:
            raise ProtocolViolation(f"tensor '{name}' of type {number} and shape {list(shape)} on a device, at '{where}'")
        if size_of(number, shape) != size:
            raise ProtocolViolation(f"tensor '{name}' of type {number} and shape {list(shape)} has {size} bytes")
        device_id = int(found[1])
        try:
            there = self._own(int(found[3]), device_id) if found[3] else self._opened(device_id, bytes.fromhex(found[4]))
            begin, end, memory = there
            if offset < begin or offset + size > end:
                raise ProtocolViolation(f"tensor '{name}' lies at {offset} to {offset + size}, not in {begin} to {end}")
            shown = DeviceArray(memory.memory, shape, dtype, memory.offset + offset - begin)
            return self._devices.copy(shown) if stays else shown.to_host()
        finally:
            self._endpoint.release(int(found[2]))

    def _own(self, loan: int, device_id: int) -> tuple[int, int, DeviceArray]:
        """Returns what the worker was lent, and where that lies in its allocation."""
        lent = self._endpoint.lent_memory(loan)
        if lent is None or lent[0].memory.device.id != device_id:
            raise ProtocolViolation(f"loan {loan} on device {device_id} is not known")
        array, base = lent
        return array.address - base, array.address - base + array.nbytes, array

    def _opened(self, device_id: int, handle: bytes) -> tuple[int, int, DeviceArray]:
        try:
            memory = self._devices.get(device_id).open_ipc(handle)
        except TpyError as error:
            raise ProtocolViolation(f"a handle of device {device_id} cannot be opened: {error}") from None
        return 0, memory.size, DeviceArray(memory, (memory.size,), np.dtype(np.uint8))
