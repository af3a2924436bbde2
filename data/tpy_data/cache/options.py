"""The options of the response cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tpy.backend import Isolation


class LocalCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """--cache-config local,size=<bytes>."""

    size_bytes: int


class RedisCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """--cache-config redis,<setting>=<value>. Time-outs are never "wait for ever", as Triton's 0 is: the default takes its place.

    `server_token` tells this run of the server from all others: for answers that no other server may give.
    """

    host: str
    port: int
    user: str = ""
    password: str = ""
    db: int = 0
    connect_timeout_ms: int = 1000
    socket_timeout_ms: int = 1000
    pool_size: int = 4
    tls: bool = False
    certificate_file: str = ""
    key_file: str = ""
    root_certificate_file: str = ""
    server_token: str = ""


class CompiledCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """--cache-config <name>,<setting>=<value> of a `library` in --cache-directory. `isolation` is where it runs; `settings` are
    passed to it. `server_token` as in RedisCacheOptions."""

    name: str
    library: Path
    isolation: Isolation = Isolation.PROCESS
    settings: Mapping[str, str] = {}
    server_token: str = ""


CacheOptions = LocalCacheOptions | RedisCacheOptions | CompiledCacheOptions
