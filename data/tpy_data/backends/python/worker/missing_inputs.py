"""MissingInputs: logs once for each name that model code asks for an input which its model does not have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

NAMES_MAX = 100
"""Wrong names that are logged for one instance: a model may make them up."""

NAME_TEXT_MAX = 200
"""Characters of a wrong name in the log."""


class MissingInputs:
    """Of one instance. `config` is its configuration as JSON, which is read when a name is missing."""

    def __init__(self, config: str, log: Callable[[str, str], None]) -> None:
        self._config = config
        self._log = log
        self._told: set[str] = set()

    def look(self, name: str) -> None:
        """A request has no input of this name: maybe it is optional, maybe no request can have it."""
        if name in self._told or len(self._told) >= NAMES_MAX:
            return
        self._told.add(name)
        config: dict[str, Any] = json.loads(self._config)
        if name in _names(config):
            return
        there = ", ".join(f"{each['name']} ({_type(each)})" for each in config.get("input", ()))
        asked = f"get_input_tensor_by_name(request, {str(name)[:NAME_TEXT_MAX]!r})"
        self._log("warning", f"{asked} returns None: the model has no such input; its inputs are {there}; logged once")


def _names(config: dict[str, Any]) -> Iterator[str]:
    """All inputs that a request may have, including the ones that the server makes."""
    for each in config.get("input", ()):
        yield each["name"]
    sequences = config.get("sequence_batching", {})
    for each in sequences.get("control_input", ()):
        yield each["name"]
    for each in sequences.get("state", ()):
        yield each["input_name"]
    for each in config.get("batch_input", ()):
        yield from each.get("target_name", ())


def _type(entry: dict[str, Any]) -> str:
    dims = ",".join(str(extent) for extent in entry.get("dims", ()))
    return f"{str(entry.get('data_type', '')).removeprefix('TYPE_')} [{dims}]"
