"""TensorProto to arrays, and back, on its wire format: numbers and `tensor_content` are arrays over the bytes that arrived, and
what the protobuf library has to read, it reads in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tpy.echo import echo
from tpy.errors import Internal, InvalidArgument
from tpy.frontends.binary_tensor import element_count, read_binary, shaped
from tpy.frontends.bytes_tensor import object_array
from tpy.frontends.grpc.codec.contents import read_strings, read_varints
from tpy.frontends.grpc.codec.fields import (
    FIXED32,
    FIXED64,
    LENGTH_DELIMITED,
    MORE,
    VARINT,
    FieldBudget,
    TooManyFields,
    each_field,
    length_delimited,
    unparsable,
    varint,
)
from tpy.limits import BYTES_ELEMENTS_MAX, TENSOR_DIMS_MAX
from tpy.limits.tensorflow_serving import FILLED_BYTES_MAX, INLINE_FILLED_BYTES_MAX, TENSOR_FIELDS_MAX
from tpy.messages import DataType, Tensor
from tpy_platforms.tensorflow_serving.protos import TYPE_NUMBERS, tf

Array = np.ndarray[Any, Any]
Pieces = list[bytes | memoryview]

DTYPES: Final[Mapping[DataType, str]] = {
    DataType.BOOL: "DT_BOOL",
    DataType.UINT8: "DT_UINT8",
    DataType.UINT16: "DT_UINT16",
    DataType.UINT32: "DT_UINT32",
    DataType.UINT64: "DT_UINT64",
    DataType.INT8: "DT_INT8",
    DataType.INT16: "DT_INT16",
    DataType.INT32: "DT_INT32",
    DataType.INT64: "DT_INT64",
    DataType.FP16: "DT_HALF",
    DataType.FP32: "DT_FLOAT",
    DataType.FP64: "DT_DOUBLE",
    DataType.BYTES: "DT_STRING",
    DataType.BF16: "DT_BFLOAT16",
    DataType.INVALID: "DT_INVALID",
}
"""TensorFlow's names of types; total over DataType."""

NUMBERS: Final[Mapping[DataType, int]] = {datatype: TYPE_NUMBERS[name] for datatype, name in DTYPES.items()}
"""Their numbers."""
_BY_NUMBER: Final = {number: datatype for datatype, number in NUMBERS.items() if number}

_STRINGS: Final = length_delimited(8)
_DTYPE, _SHAPE, _CONTENT = VARINT | 1 << 3, length_delimited(2), length_delimited(4)
_DIM, _UNKNOWN_RANK, _SIZE = length_delimited(2), VARINT | 3 << 3, VARINT | 1 << 3

_INT, _HALF, _STRING = 7, 13, 8
_FIELDS: Final[Mapping[DataType, int]] = {
    DataType.FP32: 5,
    DataType.FP64: 6,
    **dict.fromkeys((DataType.UINT8, DataType.UINT16, DataType.INT8, DataType.INT16, DataType.INT32), _INT),
    DataType.BYTES: _STRING,
    DataType.INT64: 10,
    DataType.BOOL: 11,
    DataType.FP16: _HALF,
    DataType.BF16: _HALF,
    DataType.UINT32: 16,
    DataType.UINT64: 17,
}
"""The field with the elements of a type."""

_NAMES: Final = {_INT: "int_val", 10: "int64_val", _HALF: "half_val", 16: "uint32_val", 17: "uint64_val"}
"""The fields whose numbers take one byte or more."""

_READ_AS: Final = {_INT: 2, 10: 3, 11: 1, _HALF: 2, 16: 4, 17: 5}
"""The field of Triton's InferTensorContents whose elements are written in the same way."""

_FIXED: Final[Mapping[int, tuple[int, np.dtype[Any]]]] = {5: (FIXED32, np.dtype("<f4")), 6: (FIXED64, np.dtype("<f8"))}
_TOGETHER: Final = 32_768
"""Elements that the protobuf library writes in one step: a millisecond."""
_LOW: Final = 0x7F
_LENGTH_BYTES_MAX: Final = 5
_SIGNED_BITS = 64


class ManyFilled(Exception):
    """A tensor of few bytes has many elements, which are to be made in a thread."""


def _any_shape(shape: tuple[int, ...], /) -> None:
    """Every shape is right."""


def read_tensor(
    data: memoryview, name: str, *, inline: bool = False, require_shape: Callable[[tuple[int, ...]], None] = _any_shape
) -> tuple[DataType, Array]:
    """The tensor in the TensorProto `data`. Raises InvalidArgument for a type that is not served and elements that do not fit,
    Internal for a broken message, ManyFilled where it is read `inline`, on the loop. Before missing elements are made,
    `require_shape` may raise."""
    dtype, shape, content = 0, list[memoryview](), memoryview(b"")
    values: dict[int, list[tuple[int, memoryview]]] = {}
    strings = memoryview(b"")
    try:
        for tag, start, body, end in each_field(data, FieldBudget(TENSOR_FIELDS_MAX)):
            if tag == _DTYPE:
                dtype = _number(data[body:end])
            elif tag == _SHAPE:
                shape.append(data[body:end])  # they add up
            elif tag == _CONTENT:
                content = data[body:end]
            elif tag == _STRINGS and dtype in (0, NUMBERS[DataType.BYTES]):
                strings = data[start:]
                break
            else:
                values.setdefault(tag >> 3, []).append((tag & _WIRE_TYPE, data[body:end]))
    except TooManyFields:
        raise InvalidArgument(
            f"input '{echo(name)}': more than {TENSOR_FIELDS_MAX} dimensions and numbers that are not packed"
        ) from None
    datatype = _BY_NUMBER.get(dtype)
    if datatype is None:
        raise InvalidArgument(f"input '{echo(name)}': dtype {dtype} is not served, expected one of {', '.join(_SERVED)}")
    sizes = _read_shape(shape[0] if len(shape) == 1 else memoryview(b"".join(shape)), name)
    count = element_count(sizes)
    if datatype is DataType.BYTES and count > BYTES_ELEMENTS_MAX:
        raise InvalidArgument(f"input '{echo(name)}': {count} string elements, at most {BYTES_ELEMENTS_MAX} are supported")
    if len(content):
        return datatype, _of_content(content, datatype, sizes, name)
    if datatype is DataType.BYTES:
        elements = read_strings(strings, name, count) if len(strings) else []
        if len(elements) < count:
            require_shape(sizes)
        return datatype, _filled_strings(elements, count, sizes, name, inline=inline)
    field = _FIELDS[datatype]
    parts = _elements(values.get(field, []), field)
    if sum([part.size for part in parts]) < count:
        require_shape(sizes)
    return datatype, _filled(parts, datatype, sizes, name, inline=inline)


_WIRE_TYPE: Final = 7
_SERVED: Final = [name for name in DTYPES.values() if name != "DT_INVALID"]


def _number(data: memoryview) -> int:
    """The number in the varint `data`, as signed."""
    value: int = 0
    for at, octet in enumerate(bytes(data)):
        value |= (octet & _LOW) << 7 * at
    value &= 2**_SIGNED_BITS - 1
    return value - 2**_SIGNED_BITS if value >> _SIGNED_BITS - 1 else value


def _read_shape(data: memoryview, name: str) -> tuple[int, ...]:
    sizes: list[int] = []
    budget = FieldBudget(3 * TENSOR_DIMS_MAX)
    try:
        for tag, _, body, end in each_field(data, budget):
            if tag == _UNKNOWN_RANK and _number(data[body:end]):
                raise InvalidArgument(f"input '{echo(name)}': its shape is unknown")
            if tag == _DIM:
                dim = data[body:end]
                found = [_number(dim[at:stop]) for inner, _, at, stop in each_field(dim, budget) if inner == _SIZE]
                sizes.append(found[-1] if found else 0)
    except TooManyFields:
        sizes = [0] * (TENSOR_DIMS_MAX + 1)
    if len(sizes) > TENSOR_DIMS_MAX:
        raise InvalidArgument(f"input '{echo(name)}': more than {TENSOR_DIMS_MAX} dimensions")
    if any(size < 0 for size in sizes):
        raise InvalidArgument(f"input '{echo(name)}': its shape has a size below 0")
    return tuple(sizes)


def _of_content(content: memoryview, datatype: DataType, shape: tuple[int, ...], name: str) -> Array:
    if datatype is DataType.BYTES:
        return shaped(object_array(_split(content, element_count(shape), name), (-1,)), shape, name)
    expected = element_count(shape) * datatype.itemsize
    if len(content) != expected:
        raise InvalidArgument(
            f"input '{echo(name)}': tensor_content has {len(content)} bytes, its shape and type need {expected}"
        )
    return read_binary(content, datatype, shape, tensor=name, model="", prefix="")


def _split(content: memoryview, count: int, name: str) -> list[bytes]:
    """The strings of a `tensor_content`: all lengths, then all bytes."""
    if count > len(content):
        raise InvalidArgument(f"input '{echo(name)}': tensor_content does not have the lengths of {count} strings")
    lengths: list[int] = []
    at = 0
    for _ in range(count):
        length = shift = 0
        while True:
            if at >= len(content) or shift >= 7 * _LENGTH_BYTES_MAX:
                raise InvalidArgument(f"input '{echo(name)}': tensor_content does not have the lengths of {count} strings")
            octet = content[at]
            at += 1
            length |= (octet & _LOW) << shift
            shift += 7
            if octet < MORE:
                break
        lengths.append(length)
    if at + sum(lengths) != len(content):
        raise InvalidArgument(
            f"input '{echo(name)}': tensor_content has {len(content) - at} bytes for strings of {sum(lengths)} bytes"
        )
    strings: list[bytes] = []
    for length in lengths:
        strings.append(bytes(content[at : at + length]))
        at += length
    return strings


def _elements(found: Sequence[tuple[int, memoryview]], field: int) -> list[Array]:
    """The elements of a field, packed or not."""
    wire_type = _FIXED[field][0] if field in _FIXED else VARINT
    parts: list[Array] = []
    alone: list[memoryview] = []
    for kind, data in found:
        if kind == wire_type:
            alone.append(data)
            continue
        if kind != LENGTH_DELIMITED:
            continue  # not of this field, as a parser treats it
        if alone:
            parts += _packed(b"".join(alone), field)
            alone.clear()
        parts += _packed(data, field)
    if alone:
        parts += _packed(b"".join(alone), field)
    return [part for part in parts if part.size]


def _packed(data: bytes | memoryview, field: int) -> list[Array]:
    if field not in _FIXED:
        return read_varints(memoryview(data), length_delimited(_READ_AS[field]))
    dtype = _FIXED[field][1]
    if len(data) % dtype.itemsize:
        raise unparsable()
    return [np.frombuffer(data, dtype)]


def _filled(parts: Sequence[Array], datatype: DataType, shape: tuple[int, ...], name: str, *, inline: bool) -> Array:
    """The elements as an array of this shape; the last one is repeated for missing ones, 0 without any."""
    count = element_count(shape)
    array: Array = np.empty(0, datatype.numpy)
    if parts:
        array = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if datatype in (DataType.FP16, DataType.BF16):
            array = array.astype(np.uint16).view(datatype.numpy)
        else:
            array = array.astype(datatype.numpy, copy=False)
    if array.size < count:
        _require_room(count * datatype.itemsize, name, inline=inline)
        whole: Array = np.zeros(count, datatype.numpy)
        if array.size:
            whole[: array.size] = array
            whole[array.size :] = array[-1]
        array = whole
    elif array.size > count:
        raise _too_many(name, count)
    return shaped(array, shape, name)


def _filled_strings(elements: list[bytes], count: int, shape: tuple[int, ...], name: str, *, inline: bool) -> Array:
    if len(elements) > count:
        raise _too_many(name, count)
    if len(elements) < count:
        last = elements[-1] if elements else b""
        _require_room(count * max(_POINTER_BYTES, len(last)), name, inline=inline)
        elements += [last] * (count - len(elements))
    return shaped(object_array(elements, (-1,)), shape, name)


_POINTER_BYTES: Final = 8


def _too_many(name: str, count: int) -> InvalidArgument:
    return InvalidArgument(f"input '{echo(name)}': more elements than its shape has, {count}")


def _require_room(size: int, name: str, *, inline: bool) -> None:
    if inline and size > INLINE_FILLED_BYTES_MAX:
        raise ManyFilled
    if size > FILLED_BYTES_MAX:
        raise InvalidArgument(
            f"input '{echo(name)}': it has fewer elements than its shape, so the last one would be repeated; such an input may "
            f"have {FILLED_BYTES_MAX} bytes, not {size}"
        )


def write_tensor(tensor: Tensor) -> Pieces:
    """The TensorProto with this tensor, in pieces: its elements are in the field of their type, where clients look.
    Raises Internal for a type that TensorFlow does not have."""
    if not NUMBERS[tensor.datatype]:
        raise Internal(f"output '{tensor.name}': TensorFlow has no type {tensor.datatype.value}")
    dims = b"".join(_field(2, b"\x08" + varint(size) if size else b"") for size in tensor.array.shape)
    head = b"\x08" + varint(NUMBERS[tensor.datatype]) + _field(2, dims)
    return [head, *_write_elements(tensor)]


def _write_elements(tensor: Tensor) -> Iterator[bytes | memoryview]:
    array, field = tensor.array, _FIELDS[tensor.datatype]
    if not array.size:
        return
    flat = np.ascontiguousarray(array).reshape(-1)
    if tensor.datatype is DataType.BYTES:
        tag = bytes((_STRINGS,))
        for at in range(0, flat.size, _TOGETHER):
            yield b"".join(tag + varint(len(each)) + each for each in flat[at : at + _TOGETHER].tolist())
        return
    if field not in _NAMES:
        raw = flat.view(np.uint8).data
        yield varint(length_delimited(field)) + varint(len(raw))
        yield raw
        return
    if field == _HALF:
        flat = flat.view(np.uint16)
    for at in range(0, flat.size, _TOGETHER):
        yield tf.TensorProto(**{_NAMES[field]: flat[at : at + _TOGETHER].tolist()}).SerializeToString()


def write_map_entry(number: int, key: str, value: Iterable[bytes | memoryview]) -> Pieces:
    """An entry of a map of messages, the field `number`."""
    pieces = list(value)
    size = sum(map(len, pieces))
    name = _field(1, key.encode())
    head = name + bytes((length_delimited(2),)) + varint(size)
    return [bytes((length_delimited(number),)) + varint(len(head) + size) + head, *pieces]


def _field(number: int, content: bytes) -> bytes:
    return bytes((length_delimited(number),)) + varint(len(content)) + content
