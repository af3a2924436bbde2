"""The layout of a batch's tensors: small ones in the frame's data area, large ones in one shared segment.

A tensor's descriptor in the JSON header is `[name, type number, shape, where, offset, bytes]`, `where` 0 for the frame's data
area and 1 for the message's segment; or a text, for a tensor in a device's memory (`link/device_memory.py`). Neither end copies
to decode: arrays are views of the frame or of the segment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from . import datatypes
from .frames import ALIGNMENT, DATA_BYTES_MAX, Buffer, ProtocolViolation

Array = np.ndarray[Any, Any]
Descriptor = tuple[str, int, tuple[int, ...], int | str, int, int]


class NoMemory(Exception):
    """Tensors that a peer sent need more memory, or address space, than there is now. Also stands for the segment of a
    message, if that is so of the segment."""


Segment = Array | NoMemory


INLINE_BYTES_MAX = 64 * 1024
"""Per tensor. Measured round trips, in and out, in the frame / in a segment: 48 KiB 118 / 134 us, 64 KiB 124 / 135 us, 120 KiB
142 / 141 us."""

INLINE_TOTAL_BYTES_MAX = 128 * 1024
"""Per message, so that one send and one receive move all of it (the socket's buffers hold about 200 KiB)."""

_COPIED_BYTES_MAX = 4 * 1024
"""Tensors up to this size are copied: that takes 0.1 us, making a view of them 1.5."""

RANK_MAX = 64
SEGMENT_ALIGNMENT = 64

_ZEROS = bytes(ALIGNMENT)


class ArraySource(Protocol):
    """An array in memory of somebody else's, which is read when it is written into the segment."""

    @property
    def nbytes(self) -> int: ...

    def read_into(self, target: Array) -> None:
        """Copy its bytes in C order to flat uint8."""
        ...


class PlacedData(NamedTuple):
    """Data for the segment: where to write it, and what: a flat byte view, or what is to be read now."""

    offset: int
    data: memoryview | bytes | ArraySource


class Lending(Protocol):
    """Shows the peer memory of devices."""

    def lend(self, array: Any) -> tuple[str, int, int]:
        """Returns where the peer finds it, the offset there, and the loan, until whose return the memory stays."""
        ...

    def forget(self, loans: Sequence[int]) -> None:
        """These were not sent."""
        ...


class Layout:
    """Collects the tensors of one message. Read `data`, `data_bytes`, `placed` and `segment_bytes` when all were added. `lending`
    is for those in a device's memory, which are not part of the message. `forget` a layout that is not sent."""

    __slots__ = ("_lending", "_loans", "data", "data_bytes", "placed", "segment_bytes")

    def __init__(self, lending: Lending | None = None) -> None:
        self._lending = lending
        self._loans: list[int] = []
        self.data: list[Buffer] = []
        self.data_bytes = 0
        self.placed: list[PlacedData] = []
        self.segment_bytes = 0

    def add(self, name: str, number: int, array: Any) -> Descriptor:
        """Give a tensor its place. `array` has the storage dtype of its type, or object / bytes for BYTES."""
        shape = array.shape
        if not isinstance(array, np.ndarray):
            return self._add_reference(name, number, array)
        raw: memoryview | bytes
        if number == datatypes.BYTES:
            raw = datatypes.serialize(array)
            size = len(raw)
        else:
            size = array.nbytes
            raw = array.tobytes() if size <= _COPIED_BYTES_MAX else _flat(array)
        if size <= INLINE_BYTES_MAX and self.data_bytes + size <= INLINE_TOTAL_BYTES_MAX:
            offset = self.data_bytes
            padding = -size % ALIGNMENT
            self.data.append(raw)
            if padding:
                self.data.append(_ZEROS[:padding])
            self.data_bytes += size + padding
            return (name, number, shape, 0, offset, size)
        return (name, number, shape, 1, self._place(raw, size), size)

    def _add_reference(self, name: str, number: int, array: Any) -> Descriptor:
        """Memory that is not to be touched: read when it is written into the segment, or shown to the peer."""
        if hasattr(array, "read_into"):
            return (name, number, array.shape, 1, self._place(array, array.nbytes), array.nbytes)
        if self._lending is None:
            raise ValueError(f"tensor '{name}' is on a device, and is to be sent by value")
        where, offset, loan = self._lending.lend(array)
        self._loans.append(loan)
        return (name, number, array.shape, where, offset, array.nbytes)

    def forget(self) -> None:
        """It is not sent: nobody will return what it lends."""
        if self._lending is not None:
            self._lending.forget(self._loans)

    def _place(self, data: memoryview | bytes | ArraySource, size: int) -> int:
        offset = self.segment_bytes
        self.placed.append(PlacedData(offset, data))
        self.segment_bytes += size + (-size % SEGMENT_ALIGNMENT)
        return offset


def _flat(array: Array) -> memoryview:
    """A view of the array's bytes in C order; a copy only where its strides cannot be read in one piece. Not for empty arrays."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


assert INLINE_TOTAL_BYTES_MAX + ALIGNMENT <= DATA_BYTES_MAX


def read(descriptor: Descriptor, data: memoryview, segment: Segment | None) -> Array:
    """The array that a descriptor names: a view, except for BYTES. `segment` is the message's segment as flat uint8.

    BYTES gives an object array of bytes, BF16 uint16. Raises ProtocolViolation for anything that does not add up, NoMemory.
    """
    name, number, shape, where, offset, size = descriptor
    if len(shape) > RANK_MAX or (shape and min(shape) < 0):
        raise ProtocolViolation(f"tensor '{name}' has shape {list(shape)}")
    count = math.prod(shape)
    source: memoryview | Array
    if where == 0:
        source = data
    elif where == 1 and segment is not None:
        if isinstance(segment, NoMemory):
            raise NoMemory(str(segment))
        source = segment
    else:
        raise ProtocolViolation(f"tensor '{name}' lies in a segment that was not sent")
    if offset < 0 or size < 0 or offset + size > len(source) or offset % ALIGNMENT:
        raise ProtocolViolation(f"tensor '{name}' lies at {offset} to {offset + size} of {len(source)} bytes")
    if number == datatypes.BYTES:
        try:
            return datatypes.deserialize(source[offset : offset + size], count).reshape(shape)
        except ValueError as error:
            raise ProtocolViolation(f"tensor '{name}': {error}") from None
        except MemoryError:
            raise NoMemory(f"no memory for the {count} strings of tensor '{name}'") from None
    dtype = datatypes.STORAGE_OF_NUMBER.get(number)
    if dtype is None or count * dtype.itemsize != size:
        raise ProtocolViolation(f"tensor '{name}' of type {number} and shape {list(shape)} has {size} bytes")
    if count == 0:
        return _empty(name, shape, dtype)
    if where == 0:
        return np.ndarray(shape, dtype, data, offset)  # in half the time of frombuffer and reshape
    assert isinstance(source, np.ndarray)
    return source[offset : offset + size].view(dtype).reshape(shape)


def _empty(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    try:
        return np.empty(shape, dtype)
    except ValueError as error:  # an extent beyond what numpy can count, beside one of 0
        raise ProtocolViolation(f"tensor '{name}' has shape {list(shape)}: {error}") from None
