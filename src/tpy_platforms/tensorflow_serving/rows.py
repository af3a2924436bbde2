"""Rows and columns of JSON to arrays, and back.

A request has `instances`, a row for each instance, or `inputs`, a column for each input; names are left out where there is one.
Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast

import numpy as np
import orjson

from tpy.echo import echo, echo_list
from tpy.errors import Internal, InvalidArgument
from tpy.frontends.bytes_tensor import object_array
from tpy.frontends.http.codec.document import shown
from tpy.frontends.http.codec.pieces import LongArray, LongString
from tpy.frontends.http.codec.response import dump_json, nested
from tpy.limits import BYTES_ELEMENTS_MAX, TENSOR_DIMS_MAX
from tpy.messages import DataType, Tensor
from tpy_platforms.tensorflow_serving.long_arrays import long_array_of
from tpy_platforms.tensorflow_serving.models import ServingSignature, tensor_of

BASE64: Final = "b64"
_BYTES_SUFFIX: Final = "_bytes"
_PIECE_ELEMENTS_MAX: Final = 16_384
_MATRIX: Final = 2

_FLOATS: Final = (DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64)
_NUMBERS: Final = frozenset({int, float})
_KINDS: Final[Mapping[DataType, frozenset[type]]] = {
    DataType.BOOL: frozenset({bool}),
    DataType.BYTES: frozenset({str, bytes}),
    **dict.fromkeys(_FLOATS, _NUMBERS),
}
"""The types of elements; integers have `int`."""

Document = Mapping[str, object]
Array = np.ndarray[Any, Any]


def tensors_of(document: Document, signature: ServingSignature) -> tuple[list[Tensor], bool]:
    """The inputs of a request, and True if they came as rows. Raises InvalidArgument."""
    is_rows = "instances" in document
    if is_rows == ("inputs" in document):
        raise InvalidArgument(
            "Missing 'inputs' or 'instances' key" if not is_rows else "Not expecting both 'inputs' and 'instances'"
        )
    columns = _rows(document["instances"], signature) if is_rows else _columns(document["inputs"], signature)
    tensors: list[Tensor] = []
    for name, value in columns.items():
        argument = signature.argument(name)
        tensors.append(tensor_of(argument, argument.datatype, array_of(value, argument.datatype, name)))
    return tensors, is_rows


def _rows(instances: object, signature: ServingSignature) -> Mapping[str, object]:
    """The values of each input as lists with one for each row."""
    if type(instances) is LongArray:
        return {_only(signature, "instances is a plain list"): instances}
    if type(instances) is not list:
        raise InvalidArgument(f"Excepting 'instances' to be an list/array, got {shown(instances)}")
    if not instances:
        raise InvalidArgument("'instances' is empty")
    rows = cast("list[object]", instances)
    if not _is_named(rows[0]):
        if any(_is_named(row) for row in rows):
            raise InvalidArgument("'instances': every row has to be an object with the same members, or none has to be one")
        return {_only(signature, "instances is a plain list"): rows}
    names = cast("dict[str, object]", rows[0]).keys()
    for number, row in enumerate(rows):
        if not _is_named(row) or cast("dict[str, object]", row).keys() != names:
            raise InvalidArgument(
                f"Failed to process element: {number} of 'instances' list. Expected an object with the members "
                f"{echo_list(names, ', ')}, as the first one, got {shown(row)}"
            )
    return {name: [cast("dict[str, object]", row)[name] for row in rows] for name in names}


def _columns(inputs: object, signature: ServingSignature) -> Mapping[str, object]:
    if _is_named(inputs):
        return cast("dict[str, object]", inputs)
    return {_only(signature, "inputs is a plain value/list"): inputs}


def _is_named(value: object) -> bool:
    """Returns True for an object that is not the bytes of one element."""
    return type(value) is dict and set(cast("dict[str, object]", value)) != {BASE64}


def _only(signature: ServingSignature, what: str) -> str:
    if len(signature.inputs) != 1:
        raise InvalidArgument(
            f"{what}, but expecting an object as multiple input tensors required: {echo_list(signature.inputs, ', ')}"
        )
    return next(iter(signature.inputs))


def array_of(value: object, datatype: DataType, name: str) -> Array:
    """The array in nested lists. Raises InvalidArgument for lists of different lengths, elements of another type, and more
    strings than are supported."""
    return _nested(value, _Typed(datatype, name))


class _Typed:
    """Makes arrays of the elements of one input, a part at a time."""

    def __init__(self, datatype: DataType, name: str) -> None:
        self.datatype = datatype
        self.name = name
        self._count = 0

    def __call__(self, elements: list[Any]) -> Array:
        """The elements in one dimension. Raises InvalidArgument."""
        self._count += len(elements)
        if self.datatype is DataType.BYTES and self._count > BYTES_ELEMENTS_MAX:
            raise InvalidArgument(f"input '{echo(self.name)}': more than {BYTES_ELEMENTS_MAX} string elements are not supported")
        return _array(elements, self.datatype, self.name)


def _nested(value: object, typed: _Typed) -> Array:
    name = typed.name
    if type(value) is LongArray:
        return long_array_of(value, typed, name)
    shape: list[int] = []
    flat: list[Any] = [value]
    while flat and type(flat[0]) in (list, LongArray):
        if LongArray in set(map(type, flat)):
            whole = _stacked(flat, typed)
            return whole.reshape(*shape, *whole.shape[1:])
        if len(shape) == TENSOR_DIMS_MAX:
            raise InvalidArgument(f"input '{echo(name)}': nested more than {TENSOR_DIMS_MAX} deep")
        lengths = {len(each) if type(each) is list else -1 for each in flat}
        if len(lengths) != 1:
            sizes = ", ".join("no list" if each < 0 else str(each) for each in sorted(lengths))
            raise InvalidArgument(f"input '{echo(name)}': Encountered list at unexpected size at level: {len(shape)}: {sizes}")
        shape.append(lengths.pop())
        flat = list(chain.from_iterable(flat))
    return typed(flat).reshape(shape)


def _stacked(values: list[Any], typed: _Typed) -> Array:
    """Arrays, some of them long, as one."""
    arrays = [_nested(each, typed) for each in values]
    if len({array.shape for array in arrays}) != 1:
        sizes = ", ".join(str(list(shape)) for shape in sorted({array.shape for array in arrays}))
        raise InvalidArgument(f"input '{echo(typed.name)}': Encountered lists of different shapes: {sizes}")
    return np.stack(arrays)


def _array(flat: list[Any], datatype: DataType, name: str) -> Array:
    """The elements as they are, in one dimension."""
    if datatype is DataType.BYTES:
        flat = [_bytes_of(each, name) for each in flat]
    kinds = _KINDS.get(datatype, frozenset({int}))
    if not set(map(type, flat)) <= kinds:
        wrong = next(each for each in flat if type(each) not in kinds)
        raise InvalidArgument(f"input '{echo(name)}': JSON Value: {shown(wrong)} is not of expected type: {datatype.value}")
    return object_array(flat, (-1,)) if datatype is DataType.BYTES else _numbers(flat, datatype, name)


def _numbers(flat: list[Any], datatype: DataType, name: str) -> Array:
    try:
        if datatype is DataType.BOOL:
            return np.array(flat, np.bool_)
        if _KINDS.get(datatype) is _NUMBERS:
            with np.errstate(over="raise"):
                return np.array(flat, np.float64).astype(datatype.numpy)
        return _integers(flat, datatype)
    except (OverflowError, FloatingPointError):
        raise InvalidArgument(f"input '{echo(name)}': a number is out of the range of {datatype.value}") from None


def _integers(flat: list[Any], datatype: DataType) -> Array:
    wide = np.array(flat, np.uint64 if datatype.numpy.kind == "u" else np.int64)
    bounds = np.iinfo(datatype.numpy)
    if wide.size and (wide.min() < bounds.min or wide.max() > bounds.max):
        raise OverflowError
    return wide.astype(datatype.numpy, copy=False)


def _bytes_of(value: object, name: str) -> object:
    if type(value) is str:
        return value.encode()
    if type(value) is LongString:
        return value.encode()
    if type(value) is dict:
        return decoded(cast("dict[str, object]", value), f"input '{echo(name)}'")
    return value


def decoded(value: Mapping[str, object], where: str) -> bytes:
    """The bytes of `{"b64": "..."}`. Raises InvalidArgument."""
    text = value.get(BASE64)
    if type(text) is LongString:
        text = text.decode()
    if len(value) != 1 or type(text) is not str:
        raise InvalidArgument(f'{where}: expected a text, or {{"b64": "..."}}, got {shown(value)}')
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"{where}: Unable to base64 decode: {error}") from None


def document_of(outputs: Sequence[Tensor], *, is_rows: bool) -> Iterator[bytes]:
    """The JSON of an answer, in pieces: no step holds the interpreter for long. Raises InvalidArgument for outputs that have no
    common rows, as the request could have asked by `inputs`; Internal without outputs, and for texts that are not UTF-8."""
    if not is_rows:
        yield b'{"outputs":'
        yield from _value(outputs[0]) if len(outputs) == 1 else _columns_of(outputs)
    else:
        _require_rows(outputs)
        yield b'{"predictions":'
        yield from _value(outputs[0]) if len(outputs) == 1 else _rows_of(outputs)
    yield b"}"


def _require_rows(outputs: Sequence[Tensor]) -> None:
    if not outputs:
        raise Internal("the model gave no outputs, so there are no rows")
    counts: set[int] = set()
    for tensor in outputs:
        if not tensor.array.ndim:
            raise InvalidArgument(f"Tensor name: {tensor.name} has no shape information: ask by 'inputs', not by 'instances'")
        counts.add(len(tensor.array))
    if len(counts) > 1:
        sizes = ", ".join(f"{tensor.name}: {len(tensor.array)}" for tensor in outputs)
        raise InvalidArgument(f"outputs have inconsistent batch sizes ({sizes}): ask by 'inputs', not by 'instances'")


def _columns_of(outputs: Sequence[Tensor]) -> Iterator[bytes]:
    for number, tensor in enumerate(outputs):
        yield (b"," if number else b"{") + dump_json(tensor.name) + b":"
        yield from _value(tensor)
    yield b"}" if outputs else b"{}"


def _rows_of(outputs: Sequence[Tensor]) -> Iterator[bytes]:
    names = [tensor.name for tensor in outputs]
    count = len(outputs[0].array)
    together = max(1, _PIECE_ELEMENTS_MAX * count // max(1, sum(tensor.array.size for tensor in outputs)))
    yield b"["
    for start in range(0, count, together):
        pieces = [Tensor(tensor.name, tensor.datatype, tensor.array[start : start + together]) for tensor in outputs]
        as_lists = any(map(has_literals, pieces))  # the writer of literals would write FP32 with the digits of doubles
        columns = [_writable(piece, piece.array, as_lists=as_lists) for piece in pieces]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        yield (b"," if start else b"") + dump_json(rows)[1:-1]
    yield b"]"


def _value(tensor: Tensor) -> Iterator[bytes]:
    array = tensor.array
    if array.size <= _PIECE_ELEMENTS_MAX or not array.ndim:
        yield dump_json(_writable(tensor, array))
        return
    yield b"["
    together = max(1, _PIECE_ELEMENTS_MAX // (array.size // len(array)))
    for start in range(0, len(array), together):
        if start:
            yield b","
        piece = array[start : start + together]
        if piece.size <= _PIECE_ELEMENTS_MAX:
            yield dump_json(_writable(tensor, piece))[1:-1]
        else:
            yield from _value(Tensor(tensor.name, tensor.datatype, piece[0]))
    yield b"]"


def has_literals(tensor: Tensor) -> bool:
    """Returns True if a NaN or an infinity is among the elements: they are literals, which a slower writer writes."""
    return tensor.datatype in _FLOATS and not bool(np.isfinite(tensor.array).all())


def _writable(tensor: Tensor, array: Array, *, as_lists: bool = False) -> Any:
    """The elements as the JSON writer takes them, with the shortest digits that are the number in its type."""
    if tensor.datatype is DataType.BYTES:
        return nested([_text(each, tensor.name) for each in array.reshape(-1).tolist()], array.shape)
    if tensor.datatype in (DataType.FP16, DataType.BF16):
        array = array.astype(np.float32)
    if array.dtype == np.float32 and (as_lists or array.ndim < _MATRIX or not np.isfinite(array).all()):
        return nested(_shortest(np.ascontiguousarray(array).reshape(-1)), array.shape)
    return array.tolist() if array.ndim < _MATRIX else np.ascontiguousarray(array)


def _shortest(flat: Array) -> list[float]:
    """FP32 as doubles of the same digits."""
    values: list[float] = orjson.loads(orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY))
    for at in np.flatnonzero(~np.isfinite(flat)).tolist():  # null until here
        values[at] = float(flat[at])
    return values


def _text(element: bytes, name: str) -> object:
    if name.endswith(_BYTES_SUFFIX):
        return {BASE64: base64.b64encode(element).decode()}
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise Internal(
            f"output '{name}' is not UTF-8, which JSON cannot carry: a name that ends with _bytes is sent as base64"
        ) from None
