"""How the HTTP frontend is to serve: frozen options."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tpy.frontends.restrictions import API_CATEGORIES, RestrictedApi, parse_restricted
from tpy.limits import HTTP_INPUT_BYTES_MAX_DEFAULT

__all__ = ["API_CATEGORIES", "HttpOptions", "RestrictedApi", "parse_restricted_apis"]


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
    """The values of --http-restricted-api. Raises InvalidArgument as `parse_restricted`."""
    return parse_restricted(values, flag="http-restricted-api", kind="api")
