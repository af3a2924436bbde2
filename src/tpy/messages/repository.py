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


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A load call. `config_json` replaces config.pbtxt for this load; `files` maps `<version>/<path>` to content and makes a
    model directory of its own (needs `config_json`). Sizes are bounded by `limits.LOAD_OVERRIDE_BYTES_MAX`."""

    model_name: str
    config_json: str | None = None
    files: Mapping[str, bytes] = msgspec.field(default_factory=dict)
