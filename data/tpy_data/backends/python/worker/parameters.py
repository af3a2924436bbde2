"""The `parameters` of requests and responses that model code makes."""

from __future__ import annotations

import json
from typing import Any

from .failures import TritonModelException

_spaced = json.JSONEncoder(ensure_ascii=False).encode


def parameters_json(parameters: dict[str, Any]) -> str:
    """As JSON; half characters become question marks. Raises TritonModelException for a key or value of a wrong type."""
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return _spaced(parameters).encode("utf-8", "replace").decode()
