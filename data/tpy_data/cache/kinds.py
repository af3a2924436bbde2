"""Kinds of response caches in stores, each found by its entry point in the group `tpy.caches`: NAME = module:attribute.

NAME is that of `--cache-config NAME,...`, and the attribute a CacheKind. The one that is called `.so` opens the libraries in
--cache-directory. `local` is the engine's, and in no group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from tpy.errors import Unavailable
from tpy.plugins import LIBRARIES, installed, load, named, not_loaded
from tpy.telemetry.custom_metrics import CustomMetrics

if TYPE_CHECKING:
    from tpy_data.cache.store import Store

GROUP: Final = "tpy.caches"


class ChosenCache(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's choice of a cache: its name, and settings as they are written. `environment` has the server's variables;
    `library` is a compiled cache's."""

    name: str
    settings: Mapping[str, str]
    environment: Mapping[str, str] = {}
    library: Path | None = None


class CacheKind(Protocol):
    """An entry of the table."""

    @property
    def has_own_metrics(self) -> bool:
        """True of one whose metrics of the whole cache are not the server's: it makes them itself, as Triton's do, or leaves them
        out."""
        ...

    def read(self, chosen: ChosenCache) -> object:
        """The options, for `open`. Raises InvalidArgument, with text for the operator, for settings that cannot be."""
        ...

    def open(self, options: Any, metrics: CustomMetrics) -> Store:
        """Open the store: may take a second. Raises TpyError for one that cannot be had."""
        ...


def cache_names() -> Sequence[str]:
    """The caches that need no library, `local` first; nothing is imported."""
    return ("local", *dict.fromkeys(each.name for each in installed(GROUP) if each.name not in ("local", LIBRARIES)))


def cache_kind(name: str) -> CacheKind:
    """The kind of this name, imported. Raises Unavailable for one that cannot be loaded, and that two packages offer."""
    found = load(GROUP, name, "cache")
    missing = [each for each in ("has_own_metrics", "read", "open") if not hasattr(found, each)]
    if missing:
        error = TypeError(f"expected a CacheKind, got {type(found).__name__} without {', '.join(missing)}")
        raise Unavailable(not_loaded(named(GROUP, name)[0], "cache", error))
    return cast("CacheKind", found)
