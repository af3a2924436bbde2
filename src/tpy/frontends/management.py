"""The management port: HTTP's API at a separate address, the only one where models are loaded and settings changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import msgspec

from tpy.errors import InvalidArgument
from tpy.flag import PORT_MAX, Value, read_values
from tpy.frontends.access import read_auth
from tpy.frontends.header_pattern import checked_pattern
from tpy.frontends.http.options import HttpOptions, parse_restricted_apis
from tpy.frontends.http.serving import create_port, serving
from tpy.frontends.tls_flags import read_tls
from tpy.frontends.transport import UNIX
from tpy.frontends.web_pages import read_web_pages
from tpy.limits import ANSWERS_STOP_S

Options = HttpOptions

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([^:\[\]/\s]+)):([0-9]{1,5})")


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    management_address: str
    exit_timeout_secs: int
    http_header_forward_pattern: str
    http_max_input_size: int
    http_restricted_api: tuple[str, ...]


def read_options(values: Mapping[str, Value]) -> HttpOptions | None:
    """See `tpy.frontends.table.Implementation`. Bounds and keys are HTTP's."""
    v = read_values(values, _Values)
    if not v.management_address:
        return None
    address, port = _parse(v.management_address)
    return HttpOptions(
        address=address,
        port=port,
        max_input_size=v.http_max_input_size,
        header_forward_pattern=checked_pattern(v.http_header_forward_pattern, flag="http-header-forward-pattern"),
        restricted=parse_restricted_apis(v.http_restricted_api),
        auth=read_auth(values),
        tls=read_tls(values, "management"),
        page=True,
        web_pages=read_web_pages(values, address=address, hosts_only=not address.startswith(UNIX)),
        drain_timeout_s=float(v.exit_timeout_secs + ANSWERS_STOP_S),
    )


def _parse(text: str) -> tuple[str, int]:
    """The address and the port. Raises InvalidArgument."""
    if text.startswith(UNIX) and text != UNIX:
        return text, 0
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[3]) > PORT_MAX:
        raise InvalidArgument(
            f"--management-address: expected HOST:PORT, [IPV6]:PORT or unix:PATH, as 127.0.0.1:8003, got '{text}'"
        )
    return found[1] or found[2], int(found[3])


serve = serving(partial(create_port, name="management"))
"""Serves the whole API of HTTP, and the page."""
