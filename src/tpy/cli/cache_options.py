"""--cache-config: which response cache, and how it is set up."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tpy.backend import Isolation
from tpy.cli.parsing import UsageError
from tpy_data.cache.options import CacheOptions, CompiledCacheOptions, LocalCacheOptions, RedisCacheOptions

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
_SETTING = "[a-zA-Z_][a-zA-Z0-9_.-]*="
USE_LIBRARY: Final = "use-library"
"""The setting by which a library in --cache-directory wins over a cache of this server that has its name."""
ISOLATION: Final = "isolation"
"""The setting that says where a library runs."""


def cache_options(
    texts: Sequence[str], byte_size: int, environment: Mapping[str, str], directory: str = ""
) -> CacheOptions | None:
    """The cache of --cache-config and --response-cache-byte-size (0: not given); None without cache. `directory` has the
    libraries. Raises UsageError."""
    if byte_size and texts:
        raise UsageError(
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the other."
        )
    if byte_size:
        return LocalCacheOptions(size_bytes=byte_size)
    if not texts:
        return None
    name, settings = _parse(texts)
    if name not in _CACHES or settings.get(USE_LIBRARY) == "true":
        return _compiled(name, settings, directory)
    settings.pop(USE_LIBRARY, None)
    for setting in settings:
        if setting not in _CACHES[name]:
            known = ", ".join(sorted(_CACHES[name]))
            raise UsageError(f"--cache-config: cache '{name}' has no setting '{setting}'; it has {known}")
    return _local(settings) if name == "local" else _redis(settings, environment)


def _parse(texts: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The cache's name and its settings. In the environment variable, commas have separated the pieces before."""
    joined = ",".join(texts)
    known = {*_CACHES, *(text.partition(",")[0] for text in (joined, *texts) if "," in text)}
    names: list[str] = []
    settings: dict[str, str] = {}
    for piece in re.split(f",(?=(?:{'|'.join(map(re.escape, known))})(?:,|$)|{_SETTING})", joined):
        setting, equals, value = piece.partition("=")
        if not equals and piece not in names:
            names.append(piece)
        elif equals and names and value:
            settings[setting] = value
        elif equals:
            raise UsageError(f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {joined}")
    if len(names) > 1:
        raise UsageError("--cache-config: found multiple cache configurations, but only a single cache is currently supported")
    if not settings or not names[0]:
        raise UsageError(f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {joined}")
    return names[0], settings


def _compiled(name: str, settings: dict[str, str], directory: str) -> CompiledCacheOptions:
    settings.pop(USE_LIBRARY, None)
    isolation = settings.pop(ISOLATION, Isolation.PROCESS.value)
    if isolation not in {each.value for each in Isolation}:
        raise UsageError(f"--cache-config: isolation is {' or '.join(each.value for each in Isolation)}, got '{isolation}'")
    file = Path(directory) / name / f"libtritoncache_{name}.so"
    if "/" in name or not file.is_file():
        raise UsageError(
            f"--cache-config: unable to find '{file.name}' for cache. Searched: {directory}. The caches without a library are "
            + " and ".join(f"'{known}'" for known in _CACHES)
        )
    return CompiledCacheOptions(
        name=name, library=file, isolation=Isolation(isolation), settings=settings, server_token=secrets.token_hex(16)
    )


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
    return re.sub(rf"(password=).*?(?=,{_SETTING}|$)", r"\1***", text)
