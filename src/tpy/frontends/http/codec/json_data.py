"""Tensor data in JSON to arrays: flat or nested, row-major, with exact type checks.

The common case makes no Python-level loop over the elements. Whatever it refuses is walked once more, element by element, to
say what is wrong first, as Triton's reader would; that also accepts unevenly nested data, of which only the count must be right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.frontends.bytes_tensor import BrokenElements, object_array
from tpy.frontends.http.codec.document import (
    INT64_MAX,
    INT64_MIN,
    NON_BOOLEAN,
    NON_NUMBER,
    NON_SIGNED,
    NON_STRING,
    NON_UNSIGNED,
    UINT64_MAX,
    expected_text,
    refuse,
)
from tpy.frontends.http.codec.numbers import read_numbers
from tpy.frontends.http.codec.pieces import JsonArray, LongArray
from tpy.limits import BYTES_ELEMENTS_MAX, JSON_DEPTH_MAX
from tpy.messages import DataType
from tpy.messages.allowed import with_hint

_INTEGERS: dict[DataType, tuple[int, int]] = {
    kind: (int(np.iinfo(kind.numpy).min), int(np.iinfo(kind.numpy).max))
    for kind in (
        DataType.UINT8,
        DataType.UINT16,
        DataType.UINT32,
        DataType.UINT64,
        DataType.INT8,
        DataType.INT16,
        DataType.INT32,
        DataType.INT64,
    )
}
"""Smallest and largest value of each integer type."""

_MORE = "Shape does not match true shape of 'data' field"
_ONLY_INT = {int}
_ONLY_BOOL = {bool}
_ONLY_STR = {str}
_NUMBERS = {int, float}

_SURELY_FP32 = 3.4e38
"""Numbers below it, and above its negative, are not too large for FP32."""

_FEW = 256
"""Up to this many, looking at each number costs less than having numpy look out for overflows."""


def read_json_data(
    data: JsonArray, datatype: DataType, count: int, *, tensor: str, null_is_nan: bool = False
) -> np.ndarray[Any, Any]:
    """The `count` (at least 1) elements in `data` as a one-dimensional array of `datatype`. BYTES elements come as UTF-8. With
    `null_is_nan` an FP32 or FP64 element may be null.

    An array is of `datatype` already. Raises InvalidArgument for elements of another type, integers and FP32 values out of the
    type's range, another number of elements, nesting deeper than JSON_DEPTH_MAX; BrokenElements for another number of BYTES ones.
    Nothing is allocated for `count`.
    """
    if datatype in (DataType.FP16, DataType.BF16):
        raise InvalidArgument(
            f"receiving {datatype.value} data via JSON is not supported. Please use the binary data format for input "
            f"{echo(tensor)}"
        )
    if isinstance(data, np.ndarray):
        _check_count(data.size, count, datatype, tensor)
        return data
    if isinstance(data, LongArray):
        return _read_pieces(data, datatype, count, tensor, null_is_nan=null_is_nan)
    flat = _flatten(data)
    if flat is not None and len(flat) == count:
        array = _convert(flat, datatype)
        if array is not None:
            return array
    return _read_slowly(data, datatype, count, tensor, null_is_nan=null_is_nan)


def count_elements(data: LongArray) -> int:
    """Returns the number of elements. Raises InvalidArgument as `read_json_data`."""
    return sum(len(_flat(piece.parse(), DataType.INVALID)) for piece in data.pieces())


def _read_pieces(data: LongArray, datatype: DataType, count: int, tensor: str, *, null_is_nan: bool) -> np.ndarray[Any, Any]:
    """As `read_json_data`: each piece becomes an array before the next one is parsed."""
    if datatype is DataType.BYTES and count > BYTES_ELEMENTS_MAX:
        raise BrokenElements(f"{count} string elements", f"at most {BYTES_ELEMENTS_MAX} are supported")
    arrays: list[np.ndarray[Any, Any]] = []
    nan = _nan_for_null(datatype) if null_is_nan else None
    found = 0
    for piece in data.pieces():
        array = None if piece.holds_long_string else read_numbers(piece.text, datatype)
        if array is not None:
            arrays.append(array)
            found += array.size
        else:
            flat = _flat(piece.parse(), datatype)
            if nan is not None:
                flat = [nan if element is None else element for element in flat]
            fitting = flat[: count - found] if found + len(flat) > count else flat
            if fitting:
                array = _convert(fitting, datatype)
                if array is None:
                    _refuse_elements(fitting, datatype, tensor, found)
                arrays.append(array)
            found += len(flat)
        if found > count:
            if datatype is not DataType.BYTES:
                refuse("data", _MORE, _counts(tensor, count, "more"))
            _check_count(found, count, datatype, tensor)
    _check_count(found, count, datatype, tensor)
    return np.concatenate(arrays)


def _flat(data: list[Any], datatype: DataType) -> list[Any]:
    """The scalars of nested lists. Raises InvalidArgument where the nesting gets too deep."""
    flat = _flatten(data)
    if flat is not None:
        return flat
    try:
        return list(_walk(data))
    except _TooDeep:
        _refuse_depth(datatype)


def _refuse_elements(elements: list[Any], datatype: DataType, tensor: str, offset: int) -> NoReturn:
    """Raise InvalidArgument for the first element that is not of the right type, or else does not fit; `offset` are before."""
    for index, element in enumerate(elements, offset):
        _check_type(element, datatype, tensor, index)
    _refuse_unfit(elements, datatype, tensor, offset)


def _flatten(data: list[Any]) -> list[Any] | None:
    """Evenly nested lists as one list; None for others. An element may still be a list: conversion refuses it."""
    depth = 1
    while data and type(data[0]) is list:
        depth += 1
        if depth >= JSON_DEPTH_MAX or set(map(type, data)) != {list}:
            return None
        data = list(chain.from_iterable(data))
    return data


def _convert(flat: list[Any], datatype: DataType) -> np.ndarray[Any, Any] | None:
    """The elements as an array, None when one of them has another type or does not fit."""
    kinds = set(map(type, flat))
    bounds = _INTEGERS.get(datatype)
    if bounds is not None:
        if kinds != _ONLY_INT or min(flat) < bounds[0] or max(flat) > bounds[1]:
            return None
        return np.array(flat, datatype.numpy)
    if datatype is DataType.BYTES:
        return _encode(flat) if kinds == _ONLY_STR else None
    if datatype is DataType.BOOL:
        return np.array(flat, np.bool_) if kinds == _ONLY_BOOL else None
    if not kinds <= _NUMBERS:
        return None
    try:
        if datatype is DataType.FP64 or (len(flat) <= _FEW and min(flat) > -_SURELY_FP32 and max(flat) < _SURELY_FP32):
            return np.array(flat, datatype.numpy)
        with np.errstate(over="raise"):
            return np.array(flat, datatype.numpy)
    except (FloatingPointError, OverflowError):
        return None


def _encode(flat: list[Any]) -> np.ndarray[Any, Any] | None:
    try:
        elements = [element.encode() for element in flat]
    except UnicodeEncodeError:
        return None
    return object_array(elements, (-1,))


class _TooDeep(Exception):
    """The nesting goes beyond JSON_DEPTH_MAX."""


def _walk(data: list[object]) -> Iterator[object]:
    """The scalars of nested lists, row-major. Raises _TooDeep where the nesting gets too deep."""
    open_lists = [iter(data)]
    while open_lists:
        for element in open_lists[-1]:
            if len(open_lists) >= JSON_DEPTH_MAX:
                raise _TooDeep
            if type(element) is list:
                open_lists.append(iter(element))
                break
            yield element
        else:
            open_lists.pop()


def _nan_for_null(datatype: DataType) -> float | None:
    """Returns NaN where the type has it."""
    return math.nan if datatype in (DataType.FP32, DataType.FP64) else None


def _read_slowly(data: list[object], datatype: DataType, count: int, tensor: str, *, null_is_nan: bool) -> np.ndarray[Any, Any]:
    elements: list[object] = []
    nan = _nan_for_null(datatype) if null_is_nan else None
    try:
        for element in _walk(data):
            if element is None:
                element = nan
            if len(elements) == count and datatype is not DataType.BYTES:
                refuse("data", _MORE, _counts(tensor, count, "more"))
            _check_type(element, datatype, tensor, len(elements))
            elements.append(element)
    except _TooDeep:
        _refuse_depth(datatype)
    _check_count(len(elements), count, datatype, tensor)
    array = _convert(elements, datatype)
    if array is None:
        _refuse_unfit(elements, datatype, tensor, 0)
    return array


def _refuse_depth(datatype: DataType) -> NoReturn:
    problem = f"JSON nesting depth exceeds maximum allowed limit ({JSON_DEPTH_MAX})"
    if datatype is DataType.BYTES:
        raise InvalidArgument(problem) from None
    refuse("data", problem)


def _check_type(element: object, datatype: DataType, tensor: str, index: int) -> None:
    """Raises InvalidArgument for an element that is not of the JSON type that `datatype` is read from."""
    problem = _type_problem(element, datatype)
    if not problem:
        return
    into = f" for input '{echo(tensor)}' ({datatype.value})"
    hint = expected_text(problem, element, into=into, place=f" as element {index}")
    if element is None and problem == NON_NUMBER:
        hint += " (a missing value is NaN)"
    if datatype is DataType.BYTES:
        raise InvalidArgument(with_hint(f"Unable to parse JSON bytes array: {problem}", hint))
    refuse("data", problem, hint)


def _counts(tensor: str, count: int, found: object) -> str:
    return f"expected {count} element{'s' * (count != 1)}, as the shape of input '{echo(tensor)}' says, got {found}"


def _check_count(found: int, count: int, datatype: DataType, tensor: str) -> None:
    if found == count:
        return
    if datatype is not DataType.BYTES:
        hint = _counts(tensor, count, found)
        raise InvalidArgument(with_hint("Failed to parse 'data' field: shape does not match true shape", hint))
    if found > count:
        raise BrokenElements(f"unexpected number of string elements {count + 1}", f"expecting {count}")
    raise BrokenElements(f"expected {count} string elements", f"got {found}")


def _type_problem(element: object, datatype: DataType) -> str:
    """Returns the reason why `element` is not of the JSON type that `datatype` is read from, "" if it is."""
    if datatype is DataType.BOOL:
        return "" if type(element) is bool else NON_BOOLEAN
    if datatype is DataType.BYTES:
        return "" if type(element) is str else NON_STRING
    if datatype in _INTEGERS:
        unsigned = _INTEGERS[datatype][0] == 0
        low, high = (0, UINT64_MAX) if unsigned else (INT64_MIN, INT64_MAX)
        if type(element) is int and low <= element <= high:
            return ""
        return NON_UNSIGNED if unsigned else NON_SIGNED
    return "" if type(element) in _NUMBERS else NON_NUMBER


def _refuse_unfit(elements: list[Any], datatype: DataType, tensor: str, offset: int) -> NoReturn:
    """Raise InvalidArgument for the first element that has the right JSON type and still cannot be stored."""
    for index, element in enumerate(elements, offset):
        if _convert([element], datatype) is None:
            if datatype is DataType.BYTES:
                raise InvalidArgument(f"Unable to parse 'data': element {index} of input '{tensor}' is not valid Unicode text")
            if datatype in _INTEGERS:
                low, high = _INTEGERS[datatype]
                limits = f"{low} to {high}"
            else:
                limits = f"up to {np.finfo(datatype.numpy).max:g} in magnitude"
            raise InvalidArgument(
                f"Unable to parse 'data': element {index} of input '{tensor}' is {element!r}, "
                f"out of range for {datatype.value} ({limits})"
            )
    raise InvalidArgument(f"Unable to parse 'data': input '{echo(tensor)}' does not hold {datatype.value} values")
