"""The model repository as callers see it (model_repository extension)."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class ModelState(enum.Enum):
    """State of one model version; values are the words of the repository index."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the index. `version` and `state` are None for a model that was never loaded."""

    name: str
    version: int | None = None
    state: ModelState | None = None
    reason: str = ""
    namespace: str = ""


class ConfigProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a configuration, `severity` "error" or "warning". `field` is a path as `input[0].dims`, "" the
    whole; `line` and `column` count from 1, 0: not known. `expected` says what would be right, where that adds to it."""

    severity: str
    message: str
    field: str = ""
    line: int = 0
    column: int = 0
    expected: str = ""


class ConfigCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a model as it was checked, without loading anything. `text` is what was checked, of `file` in the
    model's folder, "" where it was given or where there is none. `config_json` is the same, normalised and in JSON, "" where it
    cannot be read. Of the version folders (`versions`) its policy selects `selected`."""

    problems: tuple[ConfigProblem, ...]
    text: str = ""
    file: str = ""
    config_json: str = ""
    versions: tuple[int, ...] = ()
    selected: tuple[int, ...] = ()


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A load call. `config_json` replaces config.pbtxt for this load; `files` maps `<version>/<path>` to content and makes a
    model directory of its own (needs `config_json`). Sizes are bounded by `limits.LOAD_OVERRIDE_BYTES_MAX`."""

    model_name: str
    config_json: str | None = None
    files: Mapping[str, bytes] = msgspec.field(default_factory=dict)
