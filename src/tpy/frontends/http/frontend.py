"""The implementation of the HTTP frontend in the table."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy import limits
from tpy.flag import Value, read_values
from tpy.frontends.access import read_auth
from tpy.frontends.header_pattern import checked_pattern
from tpy.frontends.http.options import HttpOptions, parse_restricted_apis
from tpy.frontends.http.serving import serve_http as serve
from tpy.frontends.restrictions import is_managed_elsewhere
from tpy.frontends.tls_flags import read_tls
from tpy.frontends.web_pages import read_web_pages

__all__ = ["Options", "read_options", "serve"]

Options = HttpOptions


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    exit_timeout_secs: int
    http_address: str
    http_port: int
    reuse_http_port: bool
    http_header_forward_pattern: str
    http_max_input_size: int
    proxy_protocol_http: bool
    http_restricted_api: tuple[str, ...]
    page_on_http: bool


def read_options(values: Mapping[str, Value]) -> HttpOptions:
    """See `tpy.frontends.table.Implementation`."""
    v = read_values(values, _Values)
    return HttpOptions(
        address=v.http_address,
        port=v.http_port,
        reuse_port=v.reuse_http_port,
        max_input_size=v.http_max_input_size,
        header_forward_pattern=checked_pattern(v.http_header_forward_pattern, flag="http-header-forward-pattern"),
        restricted=parse_restricted_apis(v.http_restricted_api),
        auth=read_auth(values),
        page=v.page_on_http,
        managed_elsewhere=is_managed_elsewhere(values),
        web_pages=read_web_pages(values, address=v.http_address),
        tls=read_tls(values, "HTTP"),
        proxy_protocol=v.proxy_protocol_http,
        drain_timeout_s=float(v.exit_timeout_secs + limits.ANSWERS_STOP_S),
    )
