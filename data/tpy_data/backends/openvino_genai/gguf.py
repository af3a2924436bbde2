"""The metadata of a GGUF file: which model it is, how long its context is, its chat template.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from tpy.echo import echo
from tpy.errors import InvalidArgument

_MAGIC: Final = b"GGUF"
_SCALARS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_ENTRIES_MAX: Final = 65_536
_ELEMENTS_MAX: Final = 16_777_216
_TEXT_BYTES_MAX: Final = 16 * 1024 * 1024
_VERSIONS: Final = (2, 3)


class _Format(NamedTuple):
    """The format of a tensor: so many elements are in a block of `size` bytes."""

    name: str
    elements: int
    size: int


_FORMATS: Final[Mapping[int, _Format]] = {
    0: _Format("F32", 1, 4),
    1: _Format("F16", 1, 2),
    2: _Format("Q4_0", 32, 18),
    3: _Format("Q4_1", 32, 20),
    6: _Format("Q5_0", 32, 22),
    7: _Format("Q5_1", 32, 24),
    8: _Format("Q8_0", 32, 34),
    10: _Format("Q2_K", 256, 84),
    11: _Format("Q3_K", 256, 110),
    12: _Format("Q4_K", 256, 144),
    13: _Format("Q5_K", 256, 176),
    14: _Format("Q6_K", 256, 210),
    16: _Format("IQ2_XXS", 256, 66),
    17: _Format("IQ2_XS", 256, 74),
    18: _Format("IQ3_XXS", 256, 98),
    19: _Format("IQ1_S", 256, 50),
    20: _Format("IQ4_NL", 32, 18),
    21: _Format("IQ3_S", 256, 110),
    22: _Format("IQ2_S", 256, 82),
    23: _Format("IQ4_XS", 256, 136),
    29: _Format("IQ1_M", 256, 56),
    30: _Format("BF16", 1, 2),
    39: _Format("MXFP4", 32, 17),
}

READ: Final = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
"""The formats that OpenVINO GenAI reads."""


def read_metadata(path: Path) -> Mapping[str, Any]:
    """The entries of the file's header by name; that the tensors are all there is checked, too. Raises InvalidArgument with what
    is wrong with the file."""
    try:
        with path.open("rb") as file:
            return _Reader(file, path.stat().st_size, path.name).metadata()
    except (_Broken, struct.error, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"'{path.name}' is not a whole GGUF file: {error}") from None


class _Broken(Exception):
    """Says what is wrong."""


class _Reader:
    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self._file = file
        self._name = name
        self._size = size

    def metadata(self) -> Mapping[str, Any]:
        if (magic := self._file.read(4)) != _MAGIC:
            raise _Broken(f"it begins with {magic!r}, expected {_MAGIC!r}")
        version = self._scalar("<I")
        if version not in _VERSIONS:
            raise _Broken(f"its version is {version}, expected {' or '.join(map(str, _VERSIONS))}")
        tensors = self._scalar("<Q")
        count = self._scalar("<Q")
        if max(count, tensors) > _ENTRIES_MAX:
            raise _Broken(f"it says that it has {count} entries and {tensors} tensors")
        entries = {self._text(): self._value(self._scalar("<I")) for _ in range(count)}
        alignment = entries.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 65_536:
            raise _Broken("its alignment is not a number")
        self._check_tensors(tensors, alignment)
        return entries

    def _check_tensors(self, count: int, alignment: int) -> None:
        """Raises for a file that ends before its tensors do, which the engine would not survive, and for formats that it does not
        read."""
        end, unread = 0, set()
        for _ in range(count):
            name = self._text()
            elements = prod([self._scalar("<Q") for _ in range(min(self._scalar("<I"), 8))])
            kind, offset = self._scalar("<I"), self._scalar("<Q")
            known = _FORMATS.get(kind)
            if known is None or known.name not in READ:
                unread.add(known.name if known is not None else f"number {kind}")
            else:
                size = -(-elements // known.elements) * known.size
                if offset > self._size or size > self._size:
                    raise _Broken(f"its tensor '{echo(name)}' is said to lie outside of it")
                end = max(end, offset + size)
        if unread:
            raise InvalidArgument(
                f"'{self._name}' has tensors in the format {', '.join(sorted(unread))}, which OpenVINO GenAI does not read; "
                f"it reads {', '.join(READ)}"
            )
        begin = -(-self._file.tell() // alignment) * alignment
        if begin + end > self._size:
            raise _Broken(f"it has {self._size} bytes, its tensors need {begin + end}")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            element, count = self._scalar("<I"), self._scalar("<Q")
            if count > _ELEMENTS_MAX:
                raise _Broken(f"it says that it has an array of {count} elements")
            if element in _SCALARS:
                form = _SCALARS[element]
                data = self._read(struct.calcsize(form) * count)
                return struct.unpack(f"<{count}{form[1]}", data)
            return [self._value(element) for _ in range(count)]
        if kind not in _SCALARS:
            raise _Broken(f"it has a value of the unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _scalar(self, form: str) -> Any:
        return struct.unpack(form, self._read(struct.calcsize(form)))[0]

    def _text(self) -> str:
        length = self._scalar("<Q")
        if length > _TEXT_BYTES_MAX:
            raise _Broken(f"it says that it has a text of {length} bytes")
        return self._read(length).decode("utf-8", "replace")

    def _read(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise _Broken(f"it ends after {self._size} bytes, in the middle of its header")
        return data
