"""The file of --tenants-file: who shares the server, and how. In TOML or JSON."""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from tpy.errors import InvalidArgument
from tpy.files import read_file
from tpy.limits.tenants import TENANT_WEIGHT_MAX, TENANTS_FILE_BYTES_MAX, TENANTS_MAX
from tpy.units import NS_PER_S

OTHER = "other"
"""The tenant of requests of a program that embeds the server, of requests that models make for several tenants at once, and of
requests whose tenant has just been removed from the file."""

UNIX = "unix"
"""Among trusted proxies: whoever reaches a Unix socket of the server."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,128}")
_MOST = 1_000_000_000
_LEAST_PER_S = 1e-6
_COUNT_MOST = 10**15


class TenantRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant. `keys` are names of keys of --auth-config. `concurrency` requests are in the server at a time, `requests_per_s`
    with bursts of `burst` come in, and of each model's queue it may have `queue_requests` requests with `queue_bytes` of inputs.
    None: any number."""

    name: str
    keys: tuple[str, ...] = ()
    weight: int = 1
    concurrency: int | None = None
    requests_per_s: float | None = None
    burst: int | None = None
    queue_requests: int | None = None
    queue_bytes: int | None = None


class TenantsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. A request is of the tenant that `header` names, if one of `trusted_proxies` sends it; else of the one that
    the claim `token_claim` of its token names; else of the one that has its key; else of `default`. With "" for that it is
    refused. Within a tenant a request has the rank of one a priority level higher that came `priority_ageing_s` later."""

    tenants: tuple[TenantRules, ...]
    default: str = ""
    header: str = ""
    trusted_proxies: tuple[str, ...] = ()
    token_claim: str = ""
    priority_ageing_s: float = 10.0

    @property
    def ageing_ns(self) -> int:
        """`priority_ageing_s` in nanoseconds."""
        return round(self.priority_ageing_s * NS_PER_S)


_DECODER = msgspec.json.Decoder(TenantsConfig)


def read_tenants(path: str) -> TenantsConfig:
    """Reads the file. Blocks. Raises InvalidArgument for one that cannot be read, or with all that is wrong in it."""
    try:
        content = read_file(Path(path), bytes_max=TENANTS_FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidArgument(
            f"--tenants-file: cannot read '{path}': {error.strerror or error}; expected a file in TOML or JSON"
        ) from error
    try:
        is_json = Path(path).suffix == ".json" or content.lstrip()[:1] == b"{"
        config = _DECODER.decode(content) if is_json else msgspec.convert(tomllib.loads(content.decode()), TenantsConfig)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"--tenants-file: '{path}': {error}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"--tenants-file: '{path}' is neither TOML nor JSON: {error}") from None
    problems = list(_problems(config))
    if problems:
        raise InvalidArgument(f"--tenants-file: '{path}': {'; '.join(problems)}")
    return config


def fingerprint(path: str) -> tuple[int, ...]:
    """Returns the present state of a file; of a link, as Kubernetes has them, of what it leads to. Blocks."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def require_keys(config: TenantsConfig, path: str, keys: Collection[str], *, tokens: bool) -> None:
    """Raise InvalidArgument for keys that --auth-config does not have, and for a claim where that verifies no tokens."""
    unknown = [f"tenant '{each.name}' has the key '{key}'" for each in config.tenants for key in each.keys if key not in keys]
    if unknown:
        expected = f"expected one of {', '.join(sorted(keys))}" if keys else "--auth-config has no keys"
        raise InvalidArgument(f"--tenants-file: '{path}': {'; '.join(unknown)}: {expected}")
    if config.token_claim and not tokens:
        raise InvalidArgument(
            f"--tenants-file: '{path}': token_claim is '{config.token_claim}', but --auth-config verifies no tokens ([[jwt]])"
        )


def _problems(config: TenantsConfig) -> Iterable[str]:
    if not 1 <= len(config.tenants) <= TENANTS_MAX:
        yield f"expected 1 to {TENANTS_MAX} tenants, got {len(config.tenants)}"
    names = [each.name for each in config.tenants]
    yield from (f"two tenants are named '{name}'" for name in _twice(names))
    owners = [(key, each.name) for each in config.tenants for key in each.keys]
    for key in _twice([key for key, _ in owners]):
        yield f"the key '{key}' is of several tenants: {', '.join(owner for each, owner in owners if each == key)}"
    for each in config.tenants:
        yield from _problems_of(each)
    if config.default and config.default not in names:
        yield f"default is '{config.default}', which is not a tenant; expected one of {', '.join(names)}"
    if config.header and _HEADER.fullmatch(config.header) is None:
        yield f"header is '{config.header}', expected the name of a header in lower case"
    if bool(config.header) != bool(config.trusted_proxies):
        yield "expected header and trusted_proxies together: anybody can send a header"
    for proxy in config.trusted_proxies:
        if not _is_network(proxy):
            yield f"trusted_proxies has '{proxy}', expected an address, a network such as 10.0.0.0/8, or {UNIX}"
    if not 0 < config.priority_ageing_s <= 86_400:
        yield f"priority_ageing_s is {config.priority_ageing_s:g}, expected more than 0 and at most 86,400"


def _problems_of(rules: TenantRules) -> Iterable[str]:
    about = f"tenant '{rules.name}'"
    if _NAME.fullmatch(rules.name) is None or rules.name == OTHER:
        yield f"{about}: expected a name of letters, digits, '_', '.' and '-', up to 64 of them, and not '{OTHER}'"
    if not 1 <= rules.weight <= TENANT_WEIGHT_MAX:
        yield f"{about}: weight is {rules.weight}, expected 1 to {TENANT_WEIGHT_MAX:,}"
    for field in ("concurrency", "burst", "queue_requests", "queue_bytes"):
        value = getattr(rules, field)
        if value is not None and not 1 <= value <= _COUNT_MOST:
            yield f"{about}: {field} is {value}, expected 1 to {_COUNT_MOST:,}"
    if rules.requests_per_s is not None and not _LEAST_PER_S <= rules.requests_per_s <= _MOST:
        yield f"{about}: requests_per_s is {rules.requests_per_s:g}, expected {_LEAST_PER_S:f} to {_MOST:,}"
    if rules.burst is not None and rules.requests_per_s is None:
        yield f"{about}: burst is {rules.burst} and requests_per_s is missing, expected both"


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return text == UNIX
    return True


def _twice(values: Iterable[str]) -> list[str]:
    """The values that occur more than once, each once."""
    seen: set[str] = set()
    return sorted({value for value in values if value in seen or seen.add(value)})  # type: ignore[func-returns-value]
