"""The options of a request, checked: the engine relies on their types, as the frontends have seen to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpy.errors import InvalidArgument

_UINT64_END = 1 << 64


def check_options(options: Mapping[str, Any]) -> None:
    """Raises InvalidArgument for an unknown option, and for a value that an option cannot have."""
    for name, value in options.items():
        known = _OPTIONS.get(name)
        if known is None:
            raise InvalidArgument(f"'{name}' is not an option of a request; expected {', '.join(_OPTIONS)}")
        is_right, expected = known
        if not is_right(value):
            raise InvalidArgument(f"option '{name}': expected {expected}, got {value!r}")


def is_text(value: Any) -> bool:
    """Returns True for a string that has a form in UTF-8."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _UINT64_END


def _is_sequence_id(value: Any) -> bool:
    return _is_count(value) or is_text(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(is_text, value))


def _is_parameter(value: Any) -> bool:
    return is_text(value) or isinstance(value, bool | int | float)


def _are_parameters(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(is_text, value)) and all(map(_is_parameter, value.values()))


_COUNT = "a whole number from 0, of 64 bits"

_OPTIONS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "outputs": (_are_names, "a sequence of names"),
    "id": (is_text, "text"),
    "parameters": (_are_parameters, "text, numbers and booleans by name"),
    "sequence_id": (_is_sequence_id, f"text or {_COUNT}"),
    "sequence_start": (_is_flag, "True or False"),
    "sequence_end": (_is_flag, "True or False"),
    "priority": (_is_count, _COUNT),
    "timeout_us": (_is_count, _COUNT),
    "timeout_s": (_is_time, "a number of seconds"),
}
