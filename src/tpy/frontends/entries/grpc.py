"""The gRPC frontend's entry in the table."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
import trio

from tpy import limits
from tpy.errors import InvalidArgument
from tpy.flag import INT_MAX, PORT_MAX, Flag, Support, Value, new_flag, read_values

if TYPE_CHECKING:
    from tpy.clock import Clock
    from tpy.frontends.grpc import GrpcFrontendOptions
    from tpy.frontends.transport import BoundAddress, TlsOptions
    from tpy.services import Services

_FLAGS: tuple[Flag, ...] = (
    new_flag("gRPC", "allow-grpc", True, "Serve gRPC."),
    new_flag("gRPC", "grpc-address", "0.0.0.0", "Address to listen on; unix:PATH for a Unix socket.", metavar="ADDRESS"),
    new_flag("gRPC", "grpc-port", 8001, "Port to listen on; 0 takes a free one.", minimum=0, maximum=PORT_MAX),
    new_flag("gRPC", "reuse-grpc-port", False, "Share the port with other processes (SO_REUSEPORT)."),
    new_flag(
        "gRPC",
        "grpc-header-forward-pattern",
        "",
        "Metadata in whose key this is found (RE2's syntax, ignoring case) become request parameters.",
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
        "gRPC", "grpc-infer-allocation-pool-size", 8, "Pooled messages.", why="messages are not pooled", support=Support.IGNORED
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
    new_flag("gRPC", "grpc-use-ssl", False, "Serve gRPC over TLS; needs certificate and key."),
    new_flag("gRPC", "grpc-use-ssl-mutual", False, "Also demand a certificate from clients; needs the certificate authority."),
    new_flag("gRPC", "grpc-server-cert", "", "Certificate of the server (PEM).", metavar="FILE"),
    new_flag("gRPC", "grpc-server-key", "", "Key of the server (PEM).", metavar="FILE"),
    new_flag("gRPC", "grpc-root-cert", "", "Certificate authority of clients (PEM).", metavar="FILE"),
    new_flag(
        "gRPC",
        "grpc-infer-response-compression-level",
        "none",
        "How hard responses are compressed, for clients that accept it.",
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
        "Milliseconds between pings of a client that are not too soon.",
        minimum=0,
    ),
    new_flag(
        "gRPC",
        "grpc-http2-max-ping-strikes",
        2,
        "Pings that come too soon before the connection is closed; 0: never.",
        minimum=0,
    ),
    new_flag("gRPC", "grpc-max-connection-age", 0, "Milliseconds after which a connection is asked to end; 0: never.", minimum=0),
    new_flag(
        "gRPC",
        "grpc-max-connection-age-grace",
        0,
        "Milliseconds that its calls may go on then; 0: without limit.",
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


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    exit_timeout_secs: int
    allow_grpc: bool
    grpc_address: str
    grpc_port: int
    reuse_grpc_port: bool
    grpc_header_forward_pattern: str
    grpc_max_input_size: int
    grpc_use_ssl: bool
    grpc_use_ssl_mutual: bool
    grpc_server_cert: str
    grpc_server_key: str
    grpc_root_cert: str
    grpc_infer_response_compression_level: Literal["none", "low", "medium", "high"]
    grpc_keepalive_time: int
    grpc_keepalive_timeout: int
    grpc_keepalive_permit_without_calls: bool
    grpc_http2_max_pings_without_data: int
    grpc_http2_min_recv_ping_interval_without_data: int
    grpc_http2_max_ping_strikes: int
    grpc_max_connection_age: int
    grpc_max_connection_age_grace: int
    grpc_restricted_protocol: tuple[str, ...]


class GrpcFrontend:
    """See `tpy.frontends.table.Frontend`."""

    name = "gRPC"
    service = "GRPCInferenceService"
    flags = _FLAGS
    engine_only = False

    @property
    def options_type(self) -> type[GrpcFrontendOptions]:
        from tpy.frontends.grpc import GrpcFrontendOptions

        return GrpcFrontendOptions

    def options(self, values: Mapping[str, Value]) -> GrpcFrontendOptions | None:
        from tpy.frontends.grpc import GrpcFrontendOptions, GrpcServiceOptions
        from tpy.frontends.header_pattern import checked_pattern
        from tpy.frontends.restrictions import parse_restricted

        v = read_values(values, _Values)
        if not v.allow_grpc:
            return None
        return GrpcFrontendOptions(
            services=GrpcServiceOptions(
                restricted=parse_restricted(v.grpc_restricted_protocol, flag="grpc-restricted-protocol", kind="protocol"),
                header_forward_pattern=checked_pattern(v.grpc_header_forward_pattern, flag="grpc-header-forward-pattern"),
            ),
            address=v.grpc_address,
            port=v.grpc_port,
            reuse_port=v.reuse_grpc_port,
            max_receive_bytes=v.grpc_max_input_size,
            keepalive_time_s=_seconds(v.grpc_keepalive_time),
            keepalive_timeout_s=_seconds(v.grpc_keepalive_timeout),
            keepalive_permit_without_calls=v.grpc_keepalive_permit_without_calls,
            http2_max_pings_without_data=v.grpc_http2_max_pings_without_data,
            http2_min_recv_ping_interval_s=_seconds(v.grpc_http2_min_recv_ping_interval_without_data),
            http2_max_ping_strikes=v.grpc_http2_max_ping_strikes,
            max_connection_age_s=_seconds(v.grpc_max_connection_age) or None,
            max_connection_age_grace_s=_seconds(v.grpc_max_connection_age_grace) or None,
            compression=v.grpc_infer_response_compression_level,
            tls=_tls(v),
            drain_timeout_s=float(v.exit_timeout_secs + limits.ANSWERS_STOP_S),
        )

    async def serve(
        self,
        options: GrpcFrontendOptions,
        services: Services,
        clock: Clock,
        *,
        stop: trio.Event,
        inherited: Sequence[socket.socket] = (),
        task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        from tpy.frontends.grpc import serve_grpc_services

        serve = partial(serve_grpc_services, options, options.services, services, clock)
        await serve(stop=stop, inherited=inherited, task_status=task_status)


FRONTEND = GrpcFrontend()


def _tls(v: _Values) -> TlsOptions | None:
    from tpy.frontends.transport import TlsOptions

    if not v.grpc_use_ssl:
        if v.grpc_use_ssl_mutual:
            raise InvalidArgument("--grpc-use-ssl-mutual: mutual TLS needs TLS to be switched on (--grpc-use-ssl)")
        return None
    return TlsOptions(
        certificate_file=v.grpc_server_cert,
        key_file=v.grpc_server_key,
        root_certificate_file=v.grpc_root_cert,
        mutual=v.grpc_use_ssl_mutual,
    )


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1000
