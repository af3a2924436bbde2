"""The options of a compiled cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tpy.backend import Isolation


class CompiledCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """--cache-config <name>,<setting>=<value> of a `library` in --cache-directory. `isolation` is where it runs; `settings` are
    passed to it."""

    name: str
    library: Path
    isolation: Isolation = Isolation.PROCESS
    settings: Mapping[str, str] = {}
