"""The options of the response cache."""

from __future__ import annotations

import msgspec

from tpy_data.cache.kinds import CacheKind


class LocalCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """--cache-config local,size=<bytes>."""

    size_bytes: int


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """--cache-config <name>,<setting>=<value> of any other: its kind, and what that has read from the settings.

    `server_token` tells this run of the server from all others: for answers that no other server may give.
    """

    name: str
    kind: CacheKind
    options: object
    server_token: str = ""


CacheOptions = LocalCacheOptions | StoreOptions
