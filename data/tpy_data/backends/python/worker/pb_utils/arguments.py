"""Arguments of model code as Triton's module takes them: bytes in UTF-8 wherever a text goes, NumPy's strings and numbers, and
whatever has `__index__` or `__int__` wherever an integer goes, except Python's floats and strings."""

from __future__ import annotations

import operator
from typing import Any

FLAGS_MAX = (1 << 32) - 1


def as_text(value: object, errors: str = "strict") -> str | None:
    """The text, None for anything else. Raises UnicodeDecodeError for bytes that are not UTF-8, unless `errors`, as in
    `bytes.decode`, is "replace"."""
    if isinstance(value, str):
        return str(value)
    return bytes(value).decode("utf-8", errors) if isinstance(value, (bytes, bytearray)) else None


def text_argument(function: str, name: str, value: object, errors: str = "strict") -> str:
    """The text. Raises TypeError for anything else."""
    text = as_text(value, errors)
    if text is None:
        raise TypeError(f"{function}: {name} must be a str, got {type(value).__name__}")
    return text


def int_argument(function: str, name: str, value: Any, smallest: int, largest: int) -> int:
    """The integer. Raises TypeError for anything else, and for one that is out of bounds."""
    number: int | None
    try:
        number = operator.index(value)
    except TypeError:
        # A type with `__int__`, such as NumPy's booleans and float32, but neither a Python float nor a text.
        number = int(value) if hasattr(type(value), "__int__") and not isinstance(value, (float, str)) else None
    if number is None or not smallest <= number <= largest:
        raise TypeError(f"{function}: {name} must be an int from {smallest} to {largest}, got {value!r}")
    return number
