"""Tensors in a device's memory: as a model has them, and how they cross to the server and back: by handle.

A descriptor says "<device> <loan> <handle>" in place of where its bytes lie in the message, the handle in hexadecimal, with the
offset in that allocation; or "<device> <loan> @<other loan>" for memory that the receiver has lent. The lender keeps the
memory until the loan is returned, as a segment is, or the other end is gone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..pb_utils.failures import TritonModelException
from ..wire.core.datatypes import DeviceBuffer
from ..wire.endpoint import Endpoint

NO_DEVICES = "there are no GPUs in this server: tensors are in host memory"


class _Borrowed:
    """An allocation of the server's that is open. The loan is returned when nobody refers to it any more."""

    __slots__ = ("__weakref__", "_close", "_loan", "_released", "address", "size")

    def __init__(self, address: int, size: int, close: Callable[[], None], loan: int, released: deque[int]) -> None:
        self.address = address
        self.size = size
        self._close = close
        self._loan = loan
        self._released = released

    def __del__(self) -> None:
        with contextlib.suppress(OSError):  # the device is lost, and the memory with it
            self._close()
        self._released.append(self._loan)


class DeviceMemories:
    """One per worker. Any thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.sharing: Any = None
        """The module that calls the driver; None in a server without GPUs."""
        self._endpoint = endpoint
        self._borrowed: weakref.WeakValueDictionary[int, _Borrowed] = weakref.WeakValueDictionary()

    def load(self, path: str) -> None:
        """Import the module at this path, "" for a server without GPUs. Without a driver here nothing is shared, either."""
        spec = importlib.util.spec_from_file_location("tpy_device_sharing", path) if path else None
        if spec is not None and spec.loader is not None:
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            try:
                self.sharing = module.make()
            except OSError:
                self.sharing = None

    def receive(self, descriptor: Any) -> DeviceBuffer:
        """The tensor that a descriptor of the server's names. Raises TritonModelException when it cannot be opened here."""
        name, _, shape, where, offset, size = descriptor
        device, loan, handle = where.split()
        if self.sharing is None:
            self._endpoint.release(int(loan))
            raise TritonModelException(f"tensor '{name}' is on GPU {device}, which this process cannot use: {NO_DEVICES}")
        try:
            address, length, close = self.sharing.open(int(device), bytes.fromhex(handle))
        except OSError as error:
            self._endpoint.release(int(loan))
            raise TritonModelException(f"tensor '{name}' on GPU {device} cannot be opened: {error}") from None
        owner = _Borrowed(address, length, close, int(loan), self._endpoint.released)
        self._borrowed[int(loan)] = owner
        return DeviceBuffer(address + offset, tuple(shape), size, int(device), owner)

    def lend(self, buffer: DeviceBuffer) -> tuple[str, int, int]:
        """As `Lending.lend`. Raises TritonModelException when it cannot be shared."""
        if self.sharing is None:
            raise TritonModelException(NO_DEVICES)
        for known, borrowed in list(self._borrowed.items()):
            if borrowed.address <= buffer.address < borrowed.address + borrowed.size:
                loan = self._endpoint.lend_memory(buffer)
                return f"{buffer.device_id} {loan} @{known}", buffer.address - borrowed.address, loan
        try:
            handle, offset = self.sharing.share(buffer.device_id, buffer.address)
        except OSError as error:
            raise TritonModelException(f"memory of GPU {buffer.device_id} cannot be shared with the server: {error}") from None
        loan = self._endpoint.lend_memory(buffer)
        return f"{buffer.device_id} {loan} {handle.hex()}", offset, loan

    def forget(self, loans: Sequence[int]) -> None:
        """As `Lending.forget`."""
        self._endpoint.forget(loans)
