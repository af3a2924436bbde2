"""Messages with tensors: what a naive writer makes of a tensor is read as this tensor; any other bytes are read as protobuf reads
them, or refused in words; answers read back."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError

from fuzz.chance import Chance
from fuzz.target import Violation
from fuzz.tensors import elements, random_tensor, raw, same, spoiled
from tpy.errors import TpyError
from tpy.frontends.grpc.codec.fields import varint
from tpy.messages import DataType, Tensor
from tpy_platforms.tensorflow_serving.protos import TYPE_NUMBERS, tf
from tpy_platforms.tensorflow_serving.tensors import DTYPES, ManyFilled, read_tensor, write_tensor

READING = (
    "what a naive writer makes of a tensor, in tensor_content or in the field of its type, packed or not, with or without the"
    " repetitions of its last element, is read as this tensor; protobuf reads the same of any other bytes, or they are refused in"
    " words"
)
WRITING = "protobuf finds in an answer every element of a tensor, in the field of its type, with its type and shape"
_FIELDS = {
    DataType.FP32: ("float_val", 5, "<f"),
    DataType.FP64: ("double_val", 6, "<d"),
    DataType.INT64: ("int64_val", 10, ""),
    DataType.BOOL: ("bool_val", 11, ""),
    DataType.FP16: ("half_val", 13, ""),
    DataType.BF16: ("half_val", 13, ""),
    DataType.UINT32: ("uint32_val", 16, ""),
    DataType.UINT64: ("uint64_val", 17, ""),
    DataType.BYTES: ("string_val", 8, ""),
}
_INT = ("int_val", 7, "")
_BY_NUMBER = {TYPE_NUMBERS[name]: datatype for datatype, name in DTYPES.items()}
_NUMBER_BITS = 64
_FIXED64, _FIXED32 = 1, 5
Read = Callable[[bytes], Tensor]


def read(data: bytes) -> Tensor:
    """The tensor, as the product reads it."""
    datatype, array = read_tensor(memoryview(data), "x")
    return Tensor("x", datatype, array)


def read_with_zeros(data: bytes) -> Tensor:
    """A reader that fills with zeros what is left out, as a canary."""
    tensor = read(data)
    proto = tf.TensorProto.FromString(data)
    name = _FIELDS.get(tensor.datatype, _INT)[0]
    if not proto.tensor_content and tensor.datatype is not DataType.BYTES:
        flat = tensor.array.reshape(-1).copy()
        flat[len(getattr(proto, name)) :] = 0
        return Tensor("x", tensor.datatype, flat.reshape(tensor.array.shape))
    return tensor


def _values(tensor: Tensor) -> list[Any]:
    """The elements as protobuf has them."""
    if tensor.datatype in (DataType.FP16, DataType.BF16):
        return [int(each) for each in np.ravel(tensor.array).view(np.uint16)]
    return elements(tensor.datatype, raw(tensor))


def write(chance: Chance, tensor: Tensor) -> bytes:
    """A TensorProto, in one of the forms of writers."""
    name, number, form = _FIELDS.get(tensor.datatype, _INT)
    proto = tf.TensorProto(dtype=TYPE_NUMBERS[DTYPES[tensor.datatype]])
    for size in tensor.array.shape:
        proto.tensor_shape.dim.add(size=size)
    values = _values(tensor)
    kind = chance.choice(("content", "packed", "unpacked", "shortened"))
    if kind == "content":
        texts = [bytes(each) for each in values] if tensor.datatype is DataType.BYTES else []
        proto.tensor_content = b"".join([varint(len(each)) for each in texts] + texts) if texts else raw(tensor)
        if tensor.datatype is DataType.BYTES and not texts:
            proto.tensor_content = b""
        written: bytes = proto.SerializeToString()
        return written
    if kind == "shortened":
        while len(values) > 1 and _bits(values[-1]) == _bits(values[-2]):
            values.pop()
    if kind == "unpacked" and tensor.datatype is not DataType.BYTES:
        alone = b"".join(_alone(number, form, each) for each in values)
        return bytes(proto.SerializeToString()) + alone
    getattr(proto, name).extend(values)
    return bytes(proto.SerializeToString())


def _bits(value: Any) -> Any:
    return struct.pack("<d", value) if type(value) is float else value


def _alone(number: int, form: str, value: Any) -> bytes:
    if form:
        return varint(number << 3 | (_FIXED32 if form == "<f" else _FIXED64)) + struct.pack(form, value)
    return varint(number << 3) + varint(int(value) & 2**_NUMBER_BITS - 1)


def run(chance: Chance) -> int:
    """One tensor in one form, sound and then spoiled."""
    return _run(chance, read)


def run_canary(chance: Chance) -> int:
    """The same with a reader that does not repeat."""
    return _run(chance, read_with_zeros)


def _run(chance: Chance, reads: Read) -> int:
    tensor = random_tensor(chance, "x")
    if chance.random() < 0.3 and tensor.array.size:
        tensor = Tensor("x", tensor.datatype, np.full_like(tensor.array, tensor.array.flat[0]))
    data = write(chance, tensor)
    found = reads(data)
    if not _same_numbers(found, tensor):
        raise Violation(f"{data!r}\n  read as {found}\n  written {tensor}")
    for _ in chance.rounds((2, 4)):
        attack(spoiled(chance, data))
    return 3


def _same_numbers(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, but that a NaN which was a number on its way may be another NaN."""
    if same(one, other) or other.datatype not in (DataType.FP32, DataType.FP64):
        return same(one, other)
    return one.datatype is other.datatype and bool(np.array_equal(one.array, other.array, equal_nan=True))


def attack(data: bytes) -> int:
    """Any bytes in place of a message."""
    try:
        found = read(data)
    except TpyError:
        return 1
    try:
        proto = tf.TensorProto.FromString(data)
    except DecodeError:  # it is stricter about parts that are not looked at
        return 1
    expected = _as_protobuf(proto)
    if not _same_numbers(found, expected):
        raise Violation(f"{data!r}\n  read as {found}\n  protobuf {expected}")
    with suppress(ManyFilled):
        read_tensor(memoryview(data), "x", inline=True)
    return 1


def _as_protobuf(proto: Any) -> Tensor:
    """The tensor in a parsed message, element by element."""
    datatype = _BY_NUMBER[proto.dtype]
    shape = [dim.size for dim in proto.tensor_shape.dim]
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if proto.tensor_content:
        if datatype is DataType.BYTES:
            return read(proto.SerializeToString())
        array = np.frombuffer(proto.tensor_content, np.uint8 if datatype is DataType.BOOL else datatype.numpy)
        return Tensor("x", datatype, array.astype(datatype.numpy).reshape(shape))
    values = list(getattr(proto, _FIELDS.get(datatype, _INT)[0]))
    values += [values[-1] if values else (b"" if datatype is DataType.BYTES else 0)] * (count - len(values))
    if datatype is DataType.BYTES:
        array = np.empty(count, object)
        array[:] = values
    elif datatype in (DataType.FP16, DataType.BF16):
        wide = np.array([value & 0xFFFF for value in values], np.uint16)
        array = wide.view(np.float16 if datatype is DataType.FP16 else ml_dtypes.bfloat16)
    elif datatype in _FIELDS:
        array = np.array(values, datatype.numpy)
    else:
        array = np.array(values, np.int32).astype(datatype.numpy)
    return Tensor("x", datatype, array.reshape(shape))


def run_answers(chance: Chance) -> int:
    """One tensor of an answer."""
    tensor = random_tensor(chance, "x")
    proto = tf.TensorProto.FromString(b"".join(write_tensor(tensor)))
    found = _as_protobuf(proto)
    values = getattr(proto, _FIELDS.get(tensor.datatype, _INT)[0])
    if not _same_numbers(found, tensor) or len(values) != tensor.array.size:
        raise Violation(f"{tensor}\n  written as {proto}")
    return 1
