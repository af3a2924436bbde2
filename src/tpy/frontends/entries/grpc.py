"""The gRPC frontend's entry in the table."""

from __future__ import annotations

from tpy import limits
from tpy.flag import INT_MAX, PORT_MAX, Support, new_flag
from tpy.frontends.table import Frontend
from tpy.frontends.tls_flags import tls_flags

_FLAGS = (
    new_flag("gRPC", "allow-grpc", True, "Serve gRPC."),
    new_flag("gRPC", "grpc-address", "0.0.0.0", "Address to listen on; unix:PATH for a Unix socket.", metavar="ADDRESS"),
    new_flag("gRPC", "grpc-port", 8001, "Port to listen on; 0 takes a free one.", minimum=0, maximum=PORT_MAX),
    new_flag("gRPC", "reuse-grpc-port", False, "Share the port with other processes (SO_REUSEPORT)."),
    new_flag(
        "gRPC",
        "grpc-header-forward-pattern",
        "",
        "Metadata whose key matches this anywhere (RE2 syntax, ignoring case) becomes request parameters.",
        metavar="REGEX",
    ),
    new_flag(
        "gRPC",
        "grpc-max-input-size",
        limits.GRPC_MESSAGE_BYTES_MAX,
        "Bytes that a request message may have, compressed or not.",
        minimum=1,
        maximum=limits.GRPC_MESSAGE_BYTES_MAX,
    ),
    new_flag(
        "gRPC",
        "grpc-infer-thread-count",
        2,
        "gRPC threads.",
        why="one event loop serves all calls",
        support=Support.IGNORED,
        minimum=2,
        maximum=128,
    ),
    new_flag(
        "gRPC",
        "grpc-infer-allocation-pool-size",
        8,
        "Pooled messages.",
        why="messages are not pooled",
        support=Support.IGNORED,
    ),
    new_flag(
        "gRPC",
        "grpc-max-response-pool-size",
        INT_MAX,
        "Pooled responses.",
        minimum=1,
        why="messages are not pooled",
        support=Support.IGNORED,
    ),
    new_flag(
        "gRPC",
        "proxy-protocol-grpc",
        False,
        "Expect a PROXY protocol header (v1, v2) on every connection; only a load balancer may reach the port.",
    ),
    *tls_flags("gRPC", "grpc"),
    new_flag(
        "gRPC",
        "grpc-infer-response-compression-level",
        "none",
        "Compression level of responses, for clients that accept compression.",
        choices=("none", "low", "medium", "high"),
    ),
    new_flag("gRPC", "grpc-keepalive-time", 7_200_000, "Milliseconds without a byte after which the server pings.", minimum=1),
    new_flag("gRPC", "grpc-keepalive-timeout", 20_000, "Milliseconds to wait for an answer to a ping.", minimum=1),
    new_flag("gRPC", "grpc-keepalive-permit-without-calls", False, "Ping, and allow pings, also without calls."),
    new_flag(
        "gRPC",
        "grpc-http2-max-pings-without-data",
        2,
        "Pings that are sent without data in between; 0: any number.",
        minimum=0,
    ),
    new_flag(
        "gRPC",
        "grpc-http2-min-recv-ping-interval-without-data",
        300_000,
        "Minimum milliseconds between a client's pings; a sooner one is a strike.",
        minimum=0,
    ),
    new_flag(
        "gRPC",
        "grpc-http2-max-ping-strikes",
        2,
        "Strikes before the connection is closed; 0: it never is.",
        minimum=0,
    ),
    new_flag("gRPC", "grpc-max-connection-age", 0, "Milliseconds after which a connection is asked to end; 0: never.", minimum=0),
    new_flag(
        "gRPC",
        "grpc-max-connection-age-grace",
        0,
        "Milliseconds that its calls then have to finish; 0: no limit.",
        minimum=0,
    ),
    new_flag(
        "gRPC",
        "grpc-restricted-protocol",
        (),
        "Serve these protocols only to calls that carry the metadata triton-grpc-protocol-KEY.",
        metavar="PROTOCOL[,PROTOCOL]:KEY=VALUE",
        secret=True,
    ),
)

FRONTEND = Frontend(
    name="gRPC",
    service="GRPCInferenceService",
    module="tpy.frontends.grpc.frontend",
    late=("tpy.frontends.grpc.own_services",),
    switch="allow-grpc",
    flags=_FLAGS,
    checks_access=True,
)
