"""Restricted APIs: which calls are served only to clients that send a key, and which only at the management address. One notation
for all frontends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from tpy.errors import Forbidden, InvalidArgument
from tpy.flag import Value

API_CATEGORIES = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
"""The names that --http-restricted-api and --grpc-restricted-protocol take."""

GRPC_KEY_PREFIX = "triton-grpc-protocol-"
"""Before the name of a header, in metadata of gRPC."""

MANAGEMENT = frozenset({"model-repository", "trace", "logging"})
"""The APIs that other ports do not serve where --management-address is given."""


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class RestrictedApi(msgspec.Struct, frozen=True, kw_only=True):
    """These APIs are served only to requests whose header `header` has exactly `value`."""

    apis: frozenset[str]
    header: str
    value: str


def parse_restricted(values: Iterable[str], *, flag: str, kind: str) -> tuple[RestrictedApi, ...]:
    """The values of the flag `flag`, each `<api>[,<api>...]:<header>=<value>`; `kind` is what Triton calls an API there. Raises
    InvalidArgument for an unknown API, for one
    that occurs twice, and for a value without a header that HTTP can carry."""
    groups: list[RestrictedApi] = []
    seen: set[str] = set()
    for text in values:
        match = re.fullmatch(r"([^:]+):([^=]+)=(.*)", text)
        if match is None:
            raise InvalidArgument(f"--{flag} expects '<api>[,<api>...]:<header>=<value>', got: '{text}'")
        apis = [api.strip() for api in match[1].split(",")]
        for api in apis:
            if api not in API_CATEGORIES:
                raise InvalidArgument(f"--{flag}: unknown restricted {kind} '{api}', expected one of {', '.join(API_CATEGORIES)}")
            if api in seen:
                raise InvalidArgument(f"--{flag}: restricted {kind} '{api}' can not be specified in multiple config groups")
            seen.add(api)
        header = match[2].strip()
        if _HEADER_NAME.fullmatch(header) is None:
            raise InvalidArgument(f"--{flag}: '{header}' cannot be the name of a header")
        groups.append(RestrictedApi(apis=frozenset(apis), header=header, value=match[3]))
    return tuple(groups)


def restricting_headers(values: Mapping[str, Value]) -> frozenset[str]:
    """The headers and metadata that open restricted APIs of any port, in lower case."""
    found: set[str] = set()
    for flag in ("http_restricted_api", "grpc_restricted_protocol", "openai_restricted_api"):
        texts = values[flag]
        for text in texts if isinstance(texts, tuple) else ():
            header = str(text).partition(":")[2].partition("=")[0].strip().lower()
            found |= {header, f"{GRPC_KEY_PREFIX}{header}"}
    return frozenset(found)


def is_managed_elsewhere(values: Mapping[str, Value]) -> bool:
    """Returns whether the calls of MANAGEMENT have a separate address."""
    return bool(values["management_address"])


def not_managed_here() -> Forbidden:
    """The error of a call of MANAGEMENT at another port. It does not tell the address, which is not for everybody."""
    return Forbidden("This API is served at the server's management address only (--management-address)")
