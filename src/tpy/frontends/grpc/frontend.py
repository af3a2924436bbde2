"""The implementation of the gRPC frontend in the table."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy import limits
from tpy.flag import Value, read_values
from tpy.frontends.access import read_auth
from tpy.frontends.grpc.options import GrpcFrontendOptions, GrpcServiceOptions
from tpy.frontends.grpc.serving import serve_grpc_services as serve
from tpy.frontends.grpc.transport import CompressionLevel
from tpy.frontends.header_pattern import checked_pattern
from tpy.frontends.restrictions import is_managed_elsewhere, parse_restricted
from tpy.frontends.tls_flags import read_tls
from tpy.frontends.web_pages import read_web_pages

__all__ = ["Options", "read_options", "serve"]

Options = GrpcFrontendOptions


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    exit_timeout_secs: int
    grpc_address: str
    grpc_port: int
    reuse_grpc_port: bool
    grpc_header_forward_pattern: str
    grpc_max_input_size: int
    proxy_protocol_grpc: bool
    grpc_infer_response_compression_level: CompressionLevel
    grpc_keepalive_time: int
    grpc_keepalive_timeout: int
    grpc_keepalive_permit_without_calls: bool
    grpc_http2_max_pings_without_data: int
    grpc_http2_min_recv_ping_interval_without_data: int
    grpc_http2_max_ping_strikes: int
    grpc_max_connection_age: int
    grpc_max_connection_age_grace: int
    grpc_restricted_protocol: tuple[str, ...]


def read_options(values: Mapping[str, Value]) -> GrpcFrontendOptions:
    """See `tpy.frontends.table.Implementation`."""
    v = read_values(values, _Values)
    return GrpcFrontendOptions(
        services=GrpcServiceOptions(
            restricted=parse_restricted(v.grpc_restricted_protocol, flag="grpc-restricted-protocol", kind="protocol"),
            header_forward_pattern=checked_pattern(v.grpc_header_forward_pattern, flag="grpc-header-forward-pattern"),
            auth=read_auth(values),
            managed_elsewhere=is_managed_elsewhere(values),
            web_pages=read_web_pages(values, address=v.grpc_address),
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
        tls=read_tls(values, "gRPC"),
        proxy_protocol=v.proxy_protocol_grpc,
        drain_timeout_s=float(v.exit_timeout_secs + limits.ANSWERS_STOP_S),
    )


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1000
