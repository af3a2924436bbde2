"""--cache-config: which response cache, and how it is set up."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from tpy.cli.parsing import UsageError
from tpy_data.cache.options import CacheOptions, LocalCacheOptions, RedisCacheOptions

REDIS_USER_VARIABLE: Final = "TRITONCACHE_REDIS_USERNAME"
REDIS_PASSWORD_VARIABLE: Final = "TRITONCACHE_REDIS_PASSWORD"
"""Triton's names: what the flag says counts more."""

_CACHES: Final[Mapping[str, frozenset[str]]] = {
    "local": frozenset({"size"}),
    "redis": frozenset(
        [
            "host",
            "port",
            "user",
            "username",
            "password",
            "db",
            "connect_timeout",
            "socket_timeout",
            "pool_size",
            "wait_timeout",
            "tls_enabled",
            "cert",
            "key",
            "cacert",
            "cacert_dir",
            "sni",
        ]
    ),
}
_PIECES = re.compile(r",(?=(?:local|redis)(?:,|$)|[a-z_]+=)")
"""Separates `<cache>` and `<setting>=<value>` from each other; other commas belong to values."""


def cache_options(texts: Sequence[str], byte_size: int, environment: Mapping[str, str]) -> CacheOptions | None:
    """The cache of --cache-config and --response-cache-byte-size (0: not given); None without cache. Raises UsageError."""
    if byte_size and texts:
        raise UsageError(
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the other."
        )
    if byte_size:
        return LocalCacheOptions(size_bytes=byte_size)
    if not texts:
        return None
    name, settings = _parse(texts)
    for setting in settings:
        if setting not in _CACHES[name]:
            known = ", ".join(sorted(_CACHES[name]))
            raise UsageError(f"--cache-config: cache '{name}' has no setting '{setting}'; it has {known}")
    return _local(settings) if name == "local" else _redis(settings, environment)


def _parse(texts: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The cache's name and its settings. In the environment variable, commas have separated the pieces before."""
    names: list[str] = []
    settings: dict[str, str] = {}
    for piece in _PIECES.split(",".join(texts)):
        setting, equals, value = piece.partition("=")
        if not equals and piece not in names:
            names.append(piece)
        elif equals and names and value:
            settings[setting] = value
        elif equals:
            raise UsageError(f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {','.join(texts)}")
    if len(names) > 1:
        raise UsageError("--cache-config: found multiple cache configurations, but only a single cache is currently supported")
    if not settings:
        raise UsageError(f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {','.join(texts)}")
    if names[0] not in _CACHES:
        raise UsageError(f"--cache-config: expected the cache 'local' or 'redis', got '{names[0]}'")
    return names[0], settings


def _local(settings: Mapping[str, str]) -> LocalCacheOptions:
    return LocalCacheOptions(size_bytes=_number("size", settings["size"], minimum=1))


def _redis(settings: Mapping[str, str], environment: Mapping[str, str]) -> RedisCacheOptions:
    if "host" not in settings or "port" not in settings:
        raise UsageError(
            "--cache-config: Failed to initialize RedisCache, didn't specify address. Must at a minimum specify 'host' and "
            "'port' in the configuration - e.g. --cache-config redis,host=redis --cache-config redis,port=6379"
        )
    if "cacert_dir" in settings or "sni" in settings:
        raise UsageError("--cache-config: 'cacert_dir' and 'sni' of the redis cache are not supported")
    defaults = RedisCacheOptions(host="", port=0)
    numbers = {
        name: _number(name, settings[name], minimum=0)
        for name in ("port", "db", "connect_timeout", "socket_timeout", "pool_size")
        if name in settings
    }
    tls = settings.get("tls_enabled", "false")
    if tls not in ("true", "false"):
        raise UsageError(f"--cache-config: tls_enabled is true or false, got '{tls}'")
    return RedisCacheOptions(
        host=settings["host"],
        port=_within("port", numbers["port"], 65_535),
        user=settings.get("user") or settings.get("username") or environment.get(REDIS_USER_VARIABLE, ""),
        password=settings.get("password") or environment.get(REDIS_PASSWORD_VARIABLE, ""),
        db=numbers.get("db", 0),
        connect_timeout_ms=numbers.get("connect_timeout") or defaults.connect_timeout_ms,
        socket_timeout_ms=numbers.get("socket_timeout") or defaults.socket_timeout_ms,
        pool_size=_within("pool_size", numbers.get("pool_size") or defaults.pool_size, 256),
        tls=tls == "true",
        certificate_file=settings.get("cert", ""),
        key_file=settings.get("key", ""),
        root_certificate_file=settings.get("cacert", ""),
        server_token=secrets.token_hex(16),
    )


def _number(name: str, text: str, *, minimum: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) < minimum:
        raise UsageError(f"--cache-config: {name} is a number from {minimum} on, got '{text}'")
    return int(text)


def _within(name: str, number: int, maximum: int) -> int:
    if not 1 <= number <= maximum:
        raise UsageError(f"--cache-config: {name} is a number from 1 to {maximum}, got {number}")
    return number


def without_password(text: str) -> str:
    """A value of --cache-config as it may be shown."""
    return re.sub(r"(password=).*?(?=,[a-z_]+=|$)", r"\1***", text)
