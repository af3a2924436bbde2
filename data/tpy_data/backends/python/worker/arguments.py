"""Arguments of model code as Triton's module takes them: bytes in UTF-8 wherever a text goes, NumPy's strings and integers, and
whatever has `__index__` wherever an integer goes."""

from __future__ import annotations

import operator
from typing import Any


def as_text(value: object) -> str | None:
    """The text, None for what is none. Raises UnicodeDecodeError for bytes that are not UTF-8."""
    if isinstance(value, str):
        return str(value)
    return bytes(value).decode() if isinstance(value, (bytes, bytearray)) else None


def text_argument(function: str, name: str, value: object) -> str:
    """The text. Raises TypeError for what is none."""
    text = as_text(value)
    if text is None:
        raise TypeError(f"{function}: {name} must be a str, got {type(value).__name__}")
    return text


def int_argument(function: str, name: str, value: Any, smallest: int, largest: int) -> int:
    """The integer. Raises TypeError for what is none, or is out of bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not smallest <= number <= largest:
        raise TypeError(f"{function}: {name} must be an int from {smallest} to {largest}, got {value!r}")
    return number
