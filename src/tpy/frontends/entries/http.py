"""The HTTP frontend's entry in the table."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import trio

from tpy import limits
from tpy.flag import INT64_MAX, PORT_MAX, Flag, Support, Value, new_flag, read_values

if TYPE_CHECKING:
    from tpy.clock import Clock
    from tpy.frontends.http import HttpOptions
    from tpy.frontends.transport import BoundAddress
    from tpy.services import Services

_FLAGS: tuple[Flag, ...] = (
    new_flag("HTTP", "allow-http", True, "Serve HTTP."),
    new_flag("HTTP", "http-address", "0.0.0.0", "Address to listen on.", metavar="ADDRESS"),
    new_flag("HTTP", "http-port", 8000, "Port to listen on; 0 takes a free one.", minimum=0, maximum=PORT_MAX),
    new_flag("HTTP", "reuse-http-port", False, "Share the port with other processes (SO_REUSEPORT)."),
    new_flag(
        "HTTP",
        "http-header-forward-pattern",
        "",
        "Request headers in whose name this is found (RE2's syntax, ignoring case) become request parameters.",
        metavar="REGEX",
    ),
    new_flag(
        "HTTP",
        "http-thread-count",
        8,
        "HTTP threads.",
        why="one event loop serves all connections",
        minimum=1,
        support=Support.IGNORED,
    ),
    new_flag(
        "HTTP",
        "http-max-input-size",
        limits.HTTP_INPUT_BYTES_MAX_DEFAULT,
        "Bytes that a request body may have, compressed or not.",
        minimum=1,
        maximum=INT64_MAX,
    ),
    new_flag(
        "HTTP",
        "http-restricted-api",
        (),
        "Serve these APIs only to requests that carry the header.",
        metavar="API[,API]:HEADER=VALUE",
        secret=True,
    ),
)


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    exit_timeout_secs: int
    allow_http: bool
    http_address: str
    http_port: int
    reuse_http_port: bool
    http_header_forward_pattern: str
    http_max_input_size: int
    http_restricted_api: tuple[str, ...]


class HttpFrontend:
    """See `tpy.frontends.table.Frontend`."""

    name = "HTTP"
    service = "HTTPService"
    flags = _FLAGS
    engine_only = False

    @property
    def options_type(self) -> type[HttpOptions]:
        from tpy.frontends.http import HttpOptions

        return HttpOptions

    def options(self, values: Mapping[str, Value]) -> HttpOptions | None:
        from tpy.frontends.header_pattern import checked_pattern
        from tpy.frontends.http import HttpOptions, parse_restricted_apis

        v = read_values(values, _Values)
        if not v.allow_http:
            return None
        return HttpOptions(
            address=v.http_address,
            port=v.http_port,
            reuse_port=v.reuse_http_port,
            max_input_size=v.http_max_input_size,
            header_forward_pattern=checked_pattern(v.http_header_forward_pattern, flag="http-header-forward-pattern"),
            restricted=parse_restricted_apis(v.http_restricted_api),
            drain_timeout_s=float(v.exit_timeout_secs + limits.ANSWERS_STOP_S),
        )

    async def serve(
        self,
        options: HttpOptions,
        services: Services,
        clock: Clock,
        *,
        stop: trio.Event,
        inherited: Sequence[socket.socket] = (),
        task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        from tpy.frontends.http import serve_http

        await serve_http(options, services, clock, stop=stop, inherited=inherited, task_status=task_status)


FRONTEND = HttpFrontend()
