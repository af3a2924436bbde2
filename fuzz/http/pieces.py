"""JSON documents in pieces: the same as read as a whole, and refused when they are."""

from __future__ import annotations

import json
from typing import Any

from fuzz.chance import Chance
from fuzz.target import Violation
from fuzz.tensors import spoiled
from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.cutting import load_in_pieces
from tpy.frontends.http.codec.json_data import read_json_data
from tpy.frontends.http.codec.json_text import parse_json
from tpy.frontends.http.codec.numbers import read_numbers
from tpy.frontends.http.codec.pieces import ArraySizes, LongArray, LongString
from tpy.messages import DataType

INVARIANT = (
    "a document that is read in pieces has the elements, strings and members that it has as a whole; no mistake hides where it"
    " is cut; any bytes are read or refused in words"
)
_TINY = ArraySizes(piece=48, look=4, string=8, array=3, space=2)
_SCALARS: tuple[object, ...] = (
    0,
    1,
    -7,
    0.25,
    1e300,
    2**53,
    True,
    False,
    None,
    "",
    "a",
    "a,b",
    '"',
    "\\",
    "]",
    "[{:",
    "\u20ac" * 9,
    "x" * 60,
)

_NUMBERS = (0, 1, -7, 0.25, 1e300, 3.4028235e38, 3.5e38, -0.0, 1e-320, 2**31, 2**53 + 1, 2**63, 2**64, [1, [2.5]])


def _array(chance: Chance, depth: int) -> list[Any]:
    nested = depth and chance.random() < 0.4
    return [
        _array(chance, depth - 1) if nested and chance.random() < 0.8 else chance.choice(_SCALARS)
        for _ in chance.rounds((0, 1, 3, 9))
    ]


def _document(chance: Chance, depth: int) -> object:
    if depth and chance.random() < 0.6:
        return {f"m{index}": _document(chance, depth - 1) for index in range(chance.randrange(4))}
    return _array(chance, 3) if chance.random() < 0.7 else chance.choice(_SCALARS)


def _flat(value: object) -> list[Any]:
    return [scalar for element in value for scalar in _flat(element)] if isinstance(value, list) else [value]


def _resolved(value: object) -> object:
    """With arrays as flat lists."""
    if isinstance(value, LongArray):
        return [scalar for piece in value.pieces() for scalar in _flat(piece.parse())]
    if isinstance(value, LongString):
        return value.decode()
    if isinstance(value, list):
        return [_resolved(scalar) for scalar in _flat(value)]
    if isinstance(value, dict):
        return {key: _resolved(member) for key, member in value.items()}
    return value


def _read(text: bytes) -> tuple[str, object]:
    try:
        return "", _resolved(load_in_pieces(text, _TINY))
    except InvalidArgument as error:
        if not error.message:
            raise Violation(f"refused without a word: {text!r}") from None
        return error.message, None


def _compare_numbers(text: bytes) -> None:
    """Raise Violation where an array of numbers is not that which lists are."""
    for datatype in (DataType.FP32, DataType.INT32, DataType.UINT64):
        found = read_numbers(text, datatype)
        if found is None or not found.size:
            continue
        try:
            elements = parse_json(text)
            expected = read_json_data(elements, datatype, found.size, tensor="X") if isinstance(elements, list) else None
        except InvalidArgument:
            expected = None
        if expected is None or found.tobytes() != expected.tobytes():
            raise Violation(f"{text!r}\n  read as {found}\n  is {expected}")


def run(chance: Chance) -> int:
    """One document, sound and then spoiled."""
    document = _document(chance, 3)
    text = json.dumps(document, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, 0, 2 * _TINY.piece))).encode()
    problem, found = _read(text)
    if problem or found != _resolved(document):
        raise Violation(f"{text!r}\n  read as {found} {problem}")
    numbers = [chance.choice(_NUMBERS) for _ in chance.rounds((1, 3, 9))]
    _compare_numbers(bytes(spoiled(chance, json.dumps(numbers).encode())))
    for _ in chance.rounds((2, 4)):
        wrong = bytes(spoiled(chance, text))
        _compare_numbers(wrong)
        problem, found = _read(wrong)
        try:
            whole = _resolved(parse_json(wrong))
        except InvalidArgument:
            if not problem:
                raise Violation(f"{wrong!r}\n  is broken, read as {found}") from None
            continue
        if not problem and found != whole and found == found:
            raise Violation(f"{wrong!r}\n  read as {found}\n  is {whole}")
    return 5


def attack(data: bytes) -> int:
    """Any bytes: read, or refused in words."""
    _read(data)
    _compare_numbers(data)
    return 1
