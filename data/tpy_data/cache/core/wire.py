"""The format of a response in a cache outside this process: compact, with a version, and checked when read.

Little-endian; `text` is u16 length + UTF-8:

    "TPYR" | u8 version | 32 bytes: the key it was inserted under | u16 parameters | u16 outputs
    parameter: text name | "b" u8, "i" i64, "f" f64 or "s" u32 length + UTF-8
    output:    text name | text datatype | u8 dims | u64 each | u64 bytes | elements; of BYTES: each u32 length + bytes
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tpy.limits import TENSOR_DIMS_MAX
from tpy.messages import DataType, ParameterValue, Tensor
from tpy.messages.datatypes import BY_WORD
from tpy_data.cache.core.entry import KEY_BYTES, CachedResponse

_MAGIC: Final = b"TPYR"
_VERSION: Final = 2
_HEAD = struct.Struct(f"<4sB{KEY_BYTES}sHH")
_U8, _U16, _U32, _U64 = (struct.Struct(f"<{code}") for code in "BHIQ")
_NUMBER: dict[bytes, struct.Struct] = {b"b": struct.Struct("<?"), b"i": struct.Struct("<q"), b"f": struct.Struct("<d")}


class NotWritable(ValueError):
    """The answer has something that this form has no room for."""


class NotAnEntry(ValueError):
    """The bytes are not what `write_entry` made for this key."""


def write_entry(key: bytes, outputs: Sequence[Tensor], parameters: Mapping[str, ParameterValue]) -> bytes:
    """The answer as bytes. Raises NotWritable."""
    try:
        pieces: list[bytes | memoryview] = [_HEAD.pack(_MAGIC, _VERSION, key, len(parameters), len(outputs))]
        for name, value in parameters.items():
            pieces += (_text(name), _parameter(value))
        for tensor in outputs:
            _write_tensor(pieces, tensor)
    except (struct.error, UnicodeEncodeError) as error:
        raise NotWritable(str(error)) from error
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    pieces.append(_U32.pack(checksum))
    return b"".join(pieces)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _U16.pack(len(encoded)) + encoded


def _parameter(value: ParameterValue) -> bytes:
    if isinstance(value, str):
        encoded = value.encode()
        return b"s" + _U32.pack(len(encoded)) + encoded
    kind = b"b" if isinstance(value, bool) else b"i" if isinstance(value, int) else b"f"
    return kind + _NUMBER[kind].pack(value)


def _write_tensor(pieces: list[bytes | memoryview], tensor: Tensor) -> None:
    shape = tensor.array.shape
    pieces += (_text(tensor.name), _text(tensor.datatype.value), _U8.pack(len(shape)))
    pieces += [_U64.pack(dim) for dim in shape]
    if tensor.datatype is DataType.BYTES:
        data = b"".join([_U32.pack(len(element)) + element for element in tensor.array.ravel().tolist()])
    else:
        data = tensor.array.tobytes()
    pieces += (_U64.pack(len(data)), data)


def read_entry(data: bytes, key: bytes) -> CachedResponse:
    """The answer in the bytes. Raises NotAnEntry for anything but an entry for this key, whoever wrote it, as it was written."""
    content, checksum = memoryview(data)[: -_U32.size], data[-_U32.size :]
    if checksum != _U32.pack(zlib.crc32(content)):
        raise NotAnEntry("its checksum is wrong")
    reader = _Reader(content)
    magic, version, of_key, parameter_count, output_count = _HEAD.unpack(reader.take(_HEAD.size))
    if magic != _MAGIC or version != _VERSION or of_key != key:
        raise NotAnEntry("another format, or the answer to another request")
    parameters = {reader.text(): reader.parameter() for _ in range(parameter_count)}
    outputs = tuple([reader.tensor() for _ in range(output_count)])
    if not reader.at_end or len({tensor.name for tensor in outputs}) != output_count or len(parameters) != parameter_count:
        raise NotAnEntry("bytes left over, or a name twice")
    return CachedResponse(outputs, parameters)


class _Reader:
    """Takes pieces from the front. Never beyond the end."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        """True if everything was read."""
        return self._at == len(self._data)

    def take(self, count: int) -> memoryview:
        """The next `count` bytes."""
        piece = self._data[self._at : self._at + count]
        if len(piece) != count:
            raise NotAnEntry("it ends too soon")
        self._at += count
        return piece

    def number(self, form: struct.Struct) -> int:
        """The next whole number."""
        (value,) = form.unpack(self.take(form.size))
        return int(value)

    def text(self, length: struct.Struct = _U16) -> str:
        """The next text."""
        try:
            return str(self.take(self.number(length)), "utf-8")
        except UnicodeDecodeError as error:
            raise NotAnEntry("text that is not UTF-8") from error

    def parameter(self) -> ParameterValue:
        """The next parameter's value."""
        kind = bytes(self.take(1))
        if kind == b"s":
            return self.text(_U32)
        form = _NUMBER.get(kind)
        if form is None:
            raise NotAnEntry("a parameter of no known type")
        (value,) = form.unpack(self.take(form.size))
        assert isinstance(value, (bool, int, float))
        return value

    def tensor(self) -> Tensor:
        """The next tensor; its array is read-only."""
        name, datatype = self.text(), BY_WORD.get(self.text())
        dims = self.number(_U8)
        if datatype is None or dims > TENSOR_DIMS_MAX:
            raise NotAnEntry("a tensor of no known type, or with too many dimensions")
        shape = tuple([self.number(_U64) for _ in range(dims)])
        data = self.take(self.number(_U64))
        # What an array holds is known from its bytes before anything is made as large as its shape says.
        if datatype is DataType.BYTES:
            array = np.array([None, *_elements(data)], dtype=object)[1:]  # the None keeps numpy from looking into the elements
        elif len(data) == math.prod(shape) * datatype.itemsize:
            array = np.frombuffer(data, dtype=datatype.numpy)
        else:
            raise NotAnEntry("a tensor whose bytes do not fit its shape")
        try:
            array = array.reshape(shape)
        except (ValueError, OverflowError) as error:
            raise NotAnEntry("a tensor whose elements do not fit its shape") from error
        array.flags.writeable = False
        return Tensor(name, datatype, array)


def _elements(data: memoryview) -> list[bytes]:
    reader = _Reader(data)
    elements = []
    while not reader.at_end:
        elements.append(bytes(reader.take(reader.number(_U32))))
    return elements
