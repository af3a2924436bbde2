"""Routes of a model are not served; their methods stay callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Function = TypeVar("_Function")


def custom_handler(rest_path: str, rest_method: str = "POST") -> Callable[[_Function], _Function]:
    """The function as it is."""
    return lambda function: function
