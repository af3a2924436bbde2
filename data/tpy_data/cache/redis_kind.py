"""--cache-config redis: its options, and the store, whose client is imported when it is opened."""

from __future__ import annotations

from typing import Final

from tpy.errors import InvalidArgument, Unsupported
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy_data.cache.kinds import ChosenCache
from tpy_data.cache.redis_options import RedisCacheOptions
from tpy_data.cache.store import Store

REDIS_USER_VARIABLE: Final = "TRITONCACHE_REDIS_USERNAME"
REDIS_PASSWORD_VARIABLE: Final = "TRITONCACHE_REDIS_PASSWORD"
"""Triton's names: what the flag says counts more."""

_SETTINGS: Final = (
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
)


class _RedisKind:
    """See CacheKind."""

    has_own_metrics = False

    def read(self, chosen: ChosenCache) -> RedisCacheOptions:
        """See CacheKind."""
        settings = chosen.settings
        for setting in settings:
            if setting not in _SETTINGS:
                known = ", ".join(sorted(_SETTINGS))
                raise InvalidArgument(f"--cache-config: cache 'redis' has no setting '{setting}'; it has {known}")
        if "host" not in settings or "port" not in settings:
            raise InvalidArgument(
                "--cache-config: Failed to initialize RedisCache, didn't specify address. Must at a minimum specify 'host' and "
                "'port' in the configuration - e.g. --cache-config redis,host=redis --cache-config redis,port=6379"
            )
        if "cacert_dir" in settings or "sni" in settings:
            raise InvalidArgument("--cache-config: 'cacert_dir' and 'sni' of the redis cache are not supported")
        defaults = RedisCacheOptions(host="", port=0)
        numbers = {
            name: _number(name, settings[name], minimum=0)
            for name in ("port", "db", "connect_timeout", "socket_timeout", "pool_size")
            if name in settings
        }
        tls = settings.get("tls_enabled", "false")
        if tls not in ("true", "false"):
            raise InvalidArgument(f"--cache-config: tls_enabled is true or false, got '{tls}'")
        return RedisCacheOptions(
            host=settings["host"],
            port=_within("port", numbers["port"], 65_535),
            user=settings.get("user") or settings.get("username") or chosen.environment.get(REDIS_USER_VARIABLE, ""),
            password=settings.get("password") or chosen.environment.get(REDIS_PASSWORD_VARIABLE, ""),
            db=numbers.get("db", 0),
            connect_timeout_ms=numbers.get("connect_timeout") or defaults.connect_timeout_ms,
            socket_timeout_ms=numbers.get("socket_timeout") or defaults.socket_timeout_ms,
            pool_size=_within("pool_size", numbers.get("pool_size") or defaults.pool_size, 256),
            tls=tls == "true",
            certificate_file=settings.get("cert", ""),
            key_file=settings.get("key", ""),
            root_certificate_file=settings.get("cacert", ""),
        )

    def open(self, options: RedisCacheOptions, metrics: CustomMetrics) -> Store:
        """See CacheKind."""
        try:
            from tpy_data.cache.redis_store import RedisStore  # of an extra: looked for only where it is wanted
        except ImportError as error:
            raise Unsupported(f"--cache-config redis needs Redis' client (pip install redis): {error}") from error
        return RedisStore(options)


REDIS: Final = _RedisKind()


def _number(name: str, text: str, *, minimum: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) < minimum:
        raise InvalidArgument(f"--cache-config: {name} is a number from {minimum} on, got '{text}'")
    return int(text)


def _within(name: str, number: int, maximum: int) -> int:
    if not 1 <= number <= maximum:
        raise InvalidArgument(f"--cache-config: {name} is a number from 1 to {maximum}, got {number}")
    return number
