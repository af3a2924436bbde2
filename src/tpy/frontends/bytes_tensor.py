"""BYTES elements on the wire: each is its length (4 bytes, little-endian) and then its bytes, row-major."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from struct import Struct
from typing import Any

import numpy as np

from tpy.echo import echo
from tpy.limits import BYTES_ELEMENTS_MAX
from tpy.messages import content_bytes
from tpy.units import MIB

_LENGTH = Struct("<I")
_LENGTH_BYTES = _LENGTH.size
ELEMENT_BYTES_MIN = _LENGTH_BYTES
"""An element without content."""
_SAME_LENGTH_BYTES_MAX = 1024
"""Up to this element length, elements of one length are split in one pass; longer ones gain nothing from it."""
_SAME_LENGTH_COUNT_MIN = 64
"""Fewer elements are split sooner than it is known that they have one length."""
_SHORT_BYTES_MAX = 1024
"""Up to this length on average, elements are split from a copy of all of them, whose slices cost half of a view's."""
_COPY_BYTES_MAX = 4 * MIB
"""The largest such copy: some milliseconds, during which no other thread runs."""

_ELEMENTS_TOGETHER = 65_536
"""Elements that are made in one step, during which no other thread runs: some milliseconds."""


class BrokenElements(Exception):
    """The bytes are not the expected number of elements. `text` says how, for the tensor that they belong to."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found, expected)
        self.found = found
        self.expected = expected

    def text(self, *, tensor: str, model: str, prefix: str) -> str:
        """The sentence for the caller, as Triton writes it."""
        return f"{prefix}{self.found} for inference input '{echo(tensor)}' for model '{model}', {self.expected}"


class IncompleteElement(BrokenElements):
    """The last element is cut off. Triton leaves this to the backends, so its text names neither request nor model."""

    def text(self, *, tensor: str, model: str, prefix: str) -> str:
        return f"{self.found} for inference input '{echo(tensor)}', {self.expected}"


def split_elements(data: bytes | bytearray | memoryview, count: int) -> list[bytes]:
    """The `count` elements in `data`. Raises BrokenElements for another number of them or a cut-off one, or more than
    BYTES_ELEMENTS_MAX.

    Never allocates more than `data` can hold, whatever `count` is.
    """
    if count > BYTES_ELEMENTS_MAX and len(data) >= _LENGTH_BYTES * count:
        raise BrokenElements(f"{count} string elements", f"at most {BYTES_ELEMENTS_MAX} are supported")
    if count and len(data) >= _LENGTH_BYTES:
        elements = _split_same_length(data, count)
        if elements is not None:
            return elements
        elements = _split_short(data, count)
        if elements is not None:
            return elements
    return _split_one_by_one(data, count)


def _split_same_length(data: bytes | bytearray | memoryview, count: int) -> list[bytes] | None:
    (length,) = _LENGTH.unpack_from(data)
    stride = _LENGTH_BYTES + length
    if count < _SAME_LENGTH_COUNT_MIN or length > _SAME_LENGTH_BYTES_MAX or len(data) != stride * count:
        return None
    prefixes = np.frombuffer(data, np.uint8).reshape(count, stride)[:, :_LENGTH_BYTES]
    if not (prefixes == prefixes[0]).all():
        return None
    split = Struct(f"{_LENGTH_BYTES}x{length}s").iter_unpack
    elements: list[bytes] = []
    view = memoryview(data)
    for at in range(0, len(data), stride * _ELEMENTS_TOGETHER):
        elements += chain.from_iterable(split(view[at : at + stride * _ELEMENTS_TOGETHER]))
    return elements


def _split_short(data: bytes | bytearray | memoryview, count: int) -> list[bytes] | None:
    """None when they are long, or not `count` whole elements."""
    size = len(data)
    if not _LENGTH_BYTES * count <= size <= min((_LENGTH_BYTES + _SHORT_BYTES_MAX) * count, _COPY_BYTES_MAX):
        return None
    copy = bytes(data)
    unpack = _LENGTH.unpack_from
    elements: list[bytes] = []
    append = elements.append
    at, last = 0, size - _LENGTH_BYTES
    for _ in range(count):
        if at > last:
            return None
        (length,) = unpack(copy, at)
        start = at + _LENGTH_BYTES
        at = start + length
        append(copy[start:at])
    return elements if at == size else None


def _split_one_by_one(data: bytes | bytearray | memoryview, count: int) -> list[bytes]:
    view = memoryview(data)
    end = len(view)
    unpack = _LENGTH.unpack_from
    elements: list[bytes] = []
    at = 0
    while at < end:
        start = at + _LENGTH_BYTES
        if start > end:
            raise BrokenElements(
                "incomplete string length indicator",
                f"expecting {_LENGTH_BYTES} bytes but only {end - at} bytes available. Please make sure the string length "
                "indicator is in one buffer.",
            )
        if len(elements) == count:
            raise BrokenElements(f"unexpected number of string elements {count + 1}", f"expecting {count}")
        (length,) = unpack(view, at)
        at = start + length
        if at > end:
            raise IncompleteElement(
                "incomplete string data", f"expecting string of length {length} but only {end - start} bytes available"
            )
        elements.append(bytes(view[start:at]))
    if len(elements) != count:
        raise BrokenElements(f"expected {count} string elements", f"got {len(elements)}")
    return elements


def object_array(elements: list[bytes], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The elements as an array of dtype object with `shape`; there are exactly as many as it needs."""
    array = np.empty(len(elements), dtype=object)
    for at in range(0, len(elements), _ELEMENTS_TOGETHER):
        array[at : at + _ELEMENTS_TOGETHER] = elements[at : at + _ELEMENTS_TOGETHER]
    return array.reshape(shape)


def join_elements(array: np.ndarray[Any, Any]) -> bytes | memoryview:
    """All elements of a BYTES array (dtype object, holding `bytes`) with their lengths, row-major."""
    elements: list[bytes] = array.reshape(-1).tolist()
    if len(elements) <= _ELEMENTS_TOGETHER and sum(map(len, elements)) <= _COPY_BYTES_MAX:
        return _join_some(elements)
    # Others run while numpy copies bytes, as they do not while those are joined.
    joined = np.empty(_LENGTH_BYTES * len(elements) + content_bytes(array), np.uint8)
    at = 0
    for piece in _joined_pieces(elements):
        joined[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return joined.data


def _joined_pieces(elements: list[bytes]) -> Iterator[bytes]:
    """The elements with their lengths in pieces: short ones together, a long one by itself."""
    some: list[bytes] = []
    size = 0
    for element in elements:
        if len(some) >= _ELEMENTS_TOGETHER or size + len(element) > _COPY_BYTES_MAX:
            yield _join_some(some)
            some, size = [], 0
        if len(element) > _COPY_BYTES_MAX:
            yield _LENGTH.pack(len(element))
            yield element
        else:
            some.append(element)
            size += len(element)
    yield _join_some(some)


def _join_some(elements: list[bytes]) -> bytes:
    parts = [b""] * (2 * len(elements))
    parts[::2] = map(_LENGTH.pack, map(len, elements))
    parts[1::2] = elements
    return b"".join(parts)
