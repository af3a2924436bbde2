"""Numbers of JSON documents as arrays, without a Python object for each: by simdjson, four times as fast as by way of lists.

What is read here is valid. Whatever is refused here is None, and is read again as lists, which says what is wrong with it, or
takes what is unusual: literals like NaN, integers of more than 64 bits, members that are there twice.
"""

from __future__ import annotations

import threading
from typing import Any, Literal

import numpy as np
import simdjson

from tpy.limits import JSON_DEPTH_MAX
from tpy.messages import DataType
from tpy.messages.datatypes import BY_WORD

_KINDS: dict[DataType, tuple[Literal["d", "i", "u"], type[np.generic]]] = {
    DataType.FP32: ("d", np.float64),
    DataType.FP64: ("d", np.float64),
    DataType.INT8: ("i", np.int64),
    DataType.INT16: ("i", np.int64),
    DataType.INT32: ("i", np.int64),
    DataType.INT64: ("i", np.int64),
    DataType.UINT8: ("u", np.uint64),
    DataType.UINT16: ("u", np.uint64),
    DataType.UINT32: ("u", np.uint64),
    DataType.UINT64: ("u", np.uint64),
}
"""The types that elements are read as: by the parser, and by NumPy."""

_OPEN, _CLOSE = b"[]"


class _Parsers(threading.local):
    """A parser of each thread, which keeps its memory: new memory for each document would cost more than the parsing."""

    def __init__(self) -> None:
        self.parser = simdjson.Parser()


_parsers = _Parsers()


def holds_numbers(datatype: DataType) -> bool:
    """Returns True if elements of the type are read from numbers."""
    return datatype in _KINDS


def read_numbers(text: bytes, datatype: DataType) -> np.ndarray[Any, Any] | None:
    """The numbers in the JSON array `text`, nested or not, as a one-dimensional array of `datatype`. None where they are not
    all numbers that it holds, or the nesting is deeper than JSON_DEPTH_MAX may allow."""
    if datatype not in _KINDS or _depth(text) >= JSON_DEPTH_MAX:
        return None
    try:
        array = _parsers.parser.parse(text)
        return _as_array(array, datatype) if type(array) is simdjson.Array else None
    except _REFUSED:
        return None


def load_with_numbers(text: bytes | bytearray | memoryview) -> dict[str, object] | None:
    """The object in `text`, with the `data` of each of its `inputs` as a one-dimensional array of its `datatype`. None where one
    of them is not all numbers that this holds, or the document is unusual or broken."""
    if _depth(text) >= JSON_DEPTH_MAX:
        return None
    try:
        document = _parsers.parser.parse(text)
        if type(document) is not simdjson.Object:
            return None
        members = _members(document)
        inputs = members.get("inputs")
        if type(inputs) is not simdjson.Array:
            return None
        members["inputs"] = [_input(item) for item in inputs]
        return {name: _plain(value) for name, value in members.items()}
    except _REFUSED:
        return None


_REFUSED = (ValueError, TypeError, RuntimeError, KeyError, OverflowError, FloatingPointError)
"""The errors of the parser about what it does not take, and of the functions below."""


def _input(item: object) -> dict[str, object]:
    if type(item) is not simdjson.Object:
        raise TypeError
    members = _members(item)
    data = members.get("data")
    if type(data) is simdjson.Array:
        datatype = members.get("datatype")
        members["data"] = _as_array(data, BY_WORD[datatype if isinstance(datatype, str) else ""])
    return {name: _plain(value) for name, value in members.items()}


def _members(value: simdjson.Object) -> dict[str, object]:
    """The members, each once: of those with the same name it would be the first, and has to be the last."""
    members: dict[str, object] = {name: value[name] for name in value}
    if len(members) != len(value):
        raise KeyError
    return members


def _plain(value: object) -> object:
    """The value with nothing in it that belongs to the parser, which could not be used again."""
    if type(value) is simdjson.Array:
        return value.as_list()
    return value.as_dict() if type(value) is simdjson.Object else value


def _as_array(data: simdjson.Array, datatype: DataType) -> np.ndarray[Any, Any]:
    """The numbers as an array. Raises one of _REFUSED unless `datatype` holds them all."""
    kind, read_as = _KINDS[datatype]
    numbers: np.ndarray[Any, Any] = np.frombuffer(data.as_buffer(of_type=kind), read_as)
    numpy = datatype.numpy
    if numbers.dtype == numpy:
        return numbers
    if kind == "d":
        with np.errstate(over="raise"):
            return numbers.astype(numpy)
    bounds = np.iinfo(numpy)
    if numbers.size and (numbers.min() < bounds.min or numbers.max() > bounds.max):
        raise OverflowError
    return numbers.astype(numpy)


def _depth(text: bytes | bytearray | memoryview) -> int:
    """The nesting of arrays in `text`, or more than that."""
    characters = np.frombuffer(text, np.uint8)
    opening = characters == _OPEN
    depth = int(np.count_nonzero(opening))
    if depth < JSON_DEPTH_MAX:
        return depth
    brackets = characters[opening | (characters == _CLOSE)]
    return int(np.where(brackets == _OPEN, 1, -1).cumsum().max())
