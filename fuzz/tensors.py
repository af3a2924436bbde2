"""Random tensors and a naive reading of them: element by element, with nothing but `struct`."""

from __future__ import annotations

import struct

import numpy as np

from fuzz.chance import Chance
from tpy.messages import DataType, ModelDescription, Tensor, TensorDescription

TYPES = [datatype for datatype in DataType if datatype is not DataType.INVALID]
_FORMATS = {
    DataType.BOOL: "?",
    DataType.UINT8: "B",
    DataType.UINT16: "H",
    DataType.UINT32: "I",
    DataType.UINT64: "Q",
    DataType.INT8: "b",
    DataType.INT16: "h",
    DataType.INT32: "i",
    DataType.INT64: "q",
    DataType.FP16: "e",
    DataType.FP32: "f",
    DataType.FP64: "d",
}


def random_tensor(chance: Chance, name: str, *, text: bool = False) -> Tensor:
    """Any datatype, small shapes, empty ones too, at any address. `text`: elements of BYTES are UTF-8."""
    datatype = chance.choice(TYPES)
    shape = tuple(chance.choice((0, 1, 2, 3)) for _ in range(chance.randrange(4)))
    if datatype is DataType.BYTES:
        array = np.empty(shape, dtype=object)
        for index in np.ndindex(*shape):
            array[index] = chance.choice(("", "a", "ä€", '"\\', "\0")).encode() if text else chance.randbytes(chance.randrange(5))
        return Tensor(name, datatype, array)
    size = int(np.prod(shape, dtype=int)) * datatype.itemsize
    data = bytes(chance.randrange(2) for _ in range(size)) if datatype is DataType.BOOL else chance.randbytes(size)
    before = data[0] & 1 if data else 0  # as in a request's body, where elements begin anywhere
    memory = np.frombuffer(bytes(before) + data, np.uint8)[before:]
    return Tensor(name, datatype, memory.view(datatype.numpy).reshape(shape))


def raw(tensor: Tensor) -> bytes:
    """The tensor as it travels: elements in row-major order, little-endian; texts with their length in front."""
    if tensor.datatype is DataType.BYTES:
        return b"".join(struct.pack("<I", len(element)) + element for element in tensor.array.ravel().tolist())
    return tensor.array.tobytes()


def elements(datatype: DataType, data: bytes) -> list[object]:
    """The elements in what travels, as Python's values; BF16 as the float whose upper half it is."""
    if datatype is DataType.BYTES:
        texts: list[object] = []
        while data:
            (size,) = struct.unpack_from("<I", data)
            texts.append(data[4 : 4 + size])
            data = data[4 + size :]
        return texts
    if datatype is DataType.BF16:
        return [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    return list(struct.unpack(f"<{len(data) // datatype.itemsize}{_FORMATS[datatype]}", data))


def same(one: Tensor, other: Tensor) -> bool:
    """Name, type, shape and every bit."""
    return (one.name, one.datatype, one.array.shape) == (other.name, other.datatype, other.array.shape) and (
        one.array.tolist() == other.array.tolist()
        if one.datatype is DataType.BYTES
        else one.array.tobytes() == other.array.tobytes()
    )


def description_of(tensors: list[Tensor]) -> ModelDescription:
    """A model that takes and gives these tensors."""
    described = tuple(TensorDescription(name=each.name, datatype=each.datatype, shape=each.array.shape) for each in tensors)
    by_name = {each.name: each for each in described}
    return ModelDescription(
        name="m",
        version=1,
        platform="x",
        max_batch_size=0,
        decoupled=False,
        inputs=described,
        outputs=described,
        input_by_name=by_name,
        output_by_name=by_name,
    )


def spoiled(chance: Chance, data: bytes) -> bytes:
    """The bytes with a few places changed: bytes gone, doubled, or others put in."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randint(0, len(data))
        end = min(len(data), at + chance.choice((0, 1, 1, 4, 20)))
        rule = chance.randrange(4)
        if rule == 0:
            data = data[:at] + data[end:]
        elif rule == 1:
            data = data[:end] + data[at:end] + data[end:]
        else:
            other = chance.choice((b"\0", b"\xff", b'"', b"\r\n", b" ", b"0", chance.randbytes(1), chance.randbytes(4)))
            data = data[:at] + other + data[at if rule == 2 else end :]
    return data
