"""The options of the response cache in Redis."""

from __future__ import annotations

import msgspec


class RedisCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """--cache-config redis,<setting>=<value>. Time-outs are never "wait for ever", as Triton's 0 is: the default takes its
    place."""

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
