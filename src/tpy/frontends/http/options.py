"""How the HTTP frontend is to serve: frozen options, and the restricted APIs among them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from tpy.errors import InvalidArgument
from tpy.limits import HTTP_INPUT_BYTES_MAX_DEFAULT

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
"""What --http-restricted-api can name (triton.md 1.9)."""


class RestrictedApi(msgspec.Struct, frozen=True, kw_only=True):
    """These APIs are served only to requests whose header `header` has exactly `value`."""

    apis: frozenset[str]
    header: str
    value: str


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a deployment may choose about the HTTP port.

    `address` is a host name, an IP address, or `unix:<path>`; `port` 0 takes a free one (ignored for a Unix socket).
    `max_input_size` bounds a request body in bytes, before and after decompression. `header_forward_pattern` "" forwards
    nothing. With `certificate_file` and `key_file` the port speaks TLS with HTTP/2 or HTTP/1.1; without, HTTP/1.1, or
    HTTP/2 from clients that begin with its preface.

    Time-outs are seconds of Trio's clock. `header_timeout_s` runs from the first byte of a request to the end of its headers;
    a body has `body_timeout_s` plus what it needs at `body_bytes_per_s_min`; a response whose reader takes nothing for
    `write_timeout_s` is given up; `keep_alive_timeout_s` bounds idleness between requests; `drain_timeout_s` is how long
    requests in flight may finish after the stop was asked for. `fast_path` False serves everything through Hypercorn.
    """

    address: str = "0.0.0.0"
    port: int = 8000
    reuse_port: bool = False
    max_input_size: int = HTTP_INPUT_BYTES_MAX_DEFAULT
    header_forward_pattern: str = ""
    restricted: tuple[RestrictedApi, ...] = ()
    certificate_file: str = ""
    key_file: str = ""
    header_timeout_s: float = 15.0
    body_timeout_s: float = 60.0
    body_bytes_per_s_min: int = 16 * 1024
    write_timeout_s: float = 60.0
    keep_alive_timeout_s: float = 600.0
    drain_timeout_s: float = 30.0
    fast_path: bool = True


def parse_restricted_apis(values: Iterable[str]) -> tuple[RestrictedApi, ...]:
    """The values of --http-restricted-api, each `<api>[,<api>...]:<header>=<value>`. Raises InvalidArgument for an unknown API,
    for one that occurs twice, and for a value without header."""
    groups: list[RestrictedApi] = []
    seen: set[str] = set()
    for text in values:
        match = re.fullmatch(r"([^:]+):([^=]+)=(.*)", text)
        if match is None:
            raise InvalidArgument(f"--http-restricted-api expects '<api>[,<api>...]:<header>=<value>', got: '{text}'")
        apis = [api.strip() for api in match[1].split(",")]
        for api in apis:
            if api not in API_CATEGORIES:
                raise InvalidArgument(f"--http-restricted-api: unknown API '{api}', expected one of {', '.join(API_CATEGORIES)}")
            if api in seen:
                raise InvalidArgument(f"--http-restricted-api: API '{api}' can not be specified in multiple groups")
            seen.add(api)
        groups.append(RestrictedApi(apis=frozenset(apis), header=match[2].strip(), value=match[3]))
    return tuple(groups)
