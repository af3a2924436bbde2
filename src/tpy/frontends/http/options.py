"""Options of the HTTP frontend."""

from __future__ import annotations

from collections.abc import Iterable

from tpy.frontends.access import AuthOptions
from tpy.frontends.restrictions import API_CATEGORIES, RestrictedApi, parse_restricted
from tpy.frontends.transport import ListenOptions
from tpy.limits import HTTP_INPUT_BYTES_MAX_DEFAULT

__all__ = ["API_CATEGORIES", "HttpOptions", "RestrictedApi", "parse_restricted_apis"]


class HttpOptions(ListenOptions, frozen=True, kw_only=True):
    """Everything that a deployment may choose about the HTTP port.

    `max_input_size` bounds a request body in bytes, before and after decompression. `header_forward_pattern` "" forwards
    nothing. `auth` None: everybody may do everything.

    Time-outs are seconds of Trio's clock. `header_timeout_s` runs from the first byte of a request to the end of its headers;
    a body has `body_timeout_s` plus what it needs at `body_bytes_per_s_min`; a response whose reader takes nothing for
    `write_timeout_s` is given up; `keep_alive_timeout_s` bounds idleness between requests.
    """

    port: int = 8000
    max_input_size: int = HTTP_INPUT_BYTES_MAX_DEFAULT
    header_forward_pattern: str = ""
    restricted: tuple[RestrictedApi, ...] = ()
    auth: AuthOptions | None = None
    header_timeout_s: float = 15.0
    body_timeout_s: float = 60.0
    body_bytes_per_s_min: int = 16 * 1024
    write_timeout_s: float = 60.0
    keep_alive_timeout_s: float = 600.0


def parse_restricted_apis(values: Iterable[str]) -> tuple[RestrictedApi, ...]:
    """The values of --http-restricted-api. Raises InvalidArgument as `parse_restricted`."""
    return parse_restricted(values, flag="http-restricted-api", kind="api")
