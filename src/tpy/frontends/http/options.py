"""Options of the HTTP frontend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

import msgspec

from tpy.errors import InvalidArgument
from tpy.flag import Value
from tpy.frontends.access import AuthOptions, read_auth
from tpy.frontends.restrictions import API_CATEGORIES, RestrictedApi, is_managed_elsewhere, parse_restricted
from tpy.frontends.tls_flags import read_tls
from tpy.frontends.transport import ListenOptions, TlsOptions
from tpy.frontends.web_pages import WebPages, read_web_pages
from tpy.limits import ANSWERS_STOP_S, HTTP_INPUT_BYTES_MAX_DEFAULT

__all__ = ["API_CATEGORIES", "HttpOptions", "PortValues", "RestrictedApi", "parse_restricted_apis", "read_port"]


class HttpOptions(ListenOptions, frozen=True, kw_only=True):
    """Everything that a deployment may choose about the HTTP port.

    `max_input_size` bounds a request body in bytes, before and after decompression. `header_forward_pattern` "" forwards
    nothing. `auth` None: everybody may do everything. `managed_elsewhere`: the calls of
    restrictions.MANAGEMENT are refused. `page`: the page is served, too.
    `web_pages`: the pages of others that may change something.

    Time-outs are seconds of Trio's clock. `header_timeout_s` runs from the first byte of a request to the end of its headers;
    a body has `body_timeout_s` plus what it needs at `body_bytes_per_s_min`; a response whose reader takes nothing for
    `write_timeout_s` is given up; `keep_alive_timeout_s` bounds idleness between requests.
    """

    port: int = 8000
    max_input_size: int = HTTP_INPUT_BYTES_MAX_DEFAULT
    header_forward_pattern: str = ""
    restricted: tuple[RestrictedApi, ...] = ()
    auth: AuthOptions | None = None
    managed_elsewhere: bool = False
    page: bool = False
    web_pages: WebPages = WebPages()
    header_timeout_s: float = 15.0
    body_timeout_s: float = 60.0
    body_bytes_per_s_min: int = 16 * 1024
    write_timeout_s: float = 60.0
    keep_alive_timeout_s: float = 600.0


class PortValues(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the flags that a further port of HTTP takes from HTTP's own."""

    exit_timeout_secs: int
    http_address: str
    http_max_input_size: int
    proxy_protocol_http: bool
    http_restricted_api: tuple[str, ...]


class PortOptions(TypedDict):
    """The options that follow from them."""

    address: str
    max_input_size: int
    tls: TlsOptions | None
    auth: AuthOptions | None
    managed_elsewhere: bool
    web_pages: WebPages
    proxy_protocol: bool
    drain_timeout_s: float


def read_port(values: Mapping[str, Value], v: PortValues) -> PortOptions:
    """Options of a further port: the address, the bounds, the certificates and who may do what are HTTP's. Raises InvalidArgument
    for a Unix socket, of which HTTP has the only one, and as `read_tls` and `read_auth`."""
    if v.http_address.startswith("unix:"):
        raise InvalidArgument("--http-address: expected an address, as HTTP has one Unix socket for itself")
    return PortOptions(
        address=v.http_address,
        max_input_size=v.http_max_input_size,
        tls=read_tls(values, "HTTP"),
        auth=read_auth(values),
        managed_elsewhere=is_managed_elsewhere(values),
        web_pages=read_web_pages(values, address=v.http_address),
        proxy_protocol=v.proxy_protocol_http,
        drain_timeout_s=float(v.exit_timeout_secs + ANSWERS_STOP_S),
    )


def parse_restricted_apis(values: Iterable[str]) -> tuple[RestrictedApi, ...]:
    """The values of --http-restricted-api. Raises InvalidArgument as `parse_restricted`."""
    return parse_restricted(values, flag="http-restricted-api", kind="api")
