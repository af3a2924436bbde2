"""The metrics port's entry in the table. The flags that say which metrics there are belong to the server."""

from __future__ import annotations

from tpy.flag import PORT_MAX, new_flag
from tpy.frontends.table import Frontend
from tpy.frontends.tls_flags import tls_flags

_FLAGS = (
    new_flag("Metrics port", "allow-metrics", True, "Serve Prometheus metrics."),
    new_flag(
        "Metrics port",
        "metrics-address",
        "",
        "Address to listen on; empty: HTTP's address; unix:PATH for a Unix socket.",
        metavar="ADDRESS",
    ),
    new_flag("Metrics port", "metrics-port", 8002, "Port to listen on; 0 takes a free one.", minimum=0, maximum=PORT_MAX),
    *tls_flags("Metrics port", "metrics"),
)

FRONTEND = Frontend(
    name="metrics",
    service="Metrics Service",
    module="tpy.frontends.metrics_http",
    engine_only=True,
    until_drained=True,
    switch="allow-metrics",
    flags=_FLAGS,
    checks_access=True,
)
