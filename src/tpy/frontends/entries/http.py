"""The HTTP frontend's entry in the table."""

from __future__ import annotations

from tpy import limits
from tpy.flag import INT64_MAX, PORT_MAX, Support, new_flag
from tpy.frontends.table import Frontend
from tpy.frontends.tls_flags import tls_flags

_FLAGS = (
    new_flag("HTTP", "allow-http", True, "Serve HTTP."),
    new_flag("HTTP", "http-address", "0.0.0.0", "Address to listen on; unix:PATH for a Unix socket.", metavar="ADDRESS"),
    new_flag("HTTP", "http-port", 8000, "Port to listen on; 0 takes a free one.", minimum=0, maximum=PORT_MAX),
    new_flag("HTTP", "reuse-http-port", False, "Share the port with other processes (SO_REUSEPORT)."),
    new_flag(
        "HTTP",
        "http-header-forward-pattern",
        "",
        "Request headers whose name matches this anywhere (RE2 syntax, ignoring case) become request parameters.",
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
        "proxy-protocol-http",
        False,
        "Expect a PROXY protocol header (v1, v2) on every connection; only a load balancer may reach the port.",
    ),
    *tls_flags("HTTP", "http"),
    new_flag("HTTP", "page-on-http", False, "Serve the page for browsers at /page; at --management-address it is always served."),
    new_flag(
        "HTTP",
        "http-restricted-api",
        (),
        "Serve these APIs only to requests that carry the header.",
        metavar="API[,API]:HEADER=VALUE",
        secret=True,
    ),
)

FRONTEND = Frontend(
    name="HTTP",
    service="HTTPService",
    module="tpy.frontends.http.frontend",
    starting_module="tpy.frontends.http.starting",
    late=("tpy.frontends.http.app",),
    switch="allow-http",
    flags=_FLAGS,
    checks_access=True,
)
