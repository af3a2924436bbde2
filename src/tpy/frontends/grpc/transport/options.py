"""Options of the gRPC port."""

from __future__ import annotations

from typing import Literal

from tpy.frontends.transport import ListenOptions
from tpy.limits import GRPC_HEADER_BYTES_MAX, GRPC_MESSAGE_BYTES_MAX, GRPC_STREAMS_PER_CONNECTION_MAX

CompressionLevel = Literal["none", "low", "medium", "high"]


class GrpcOptions(ListenOptions, frozen=True, kw_only=True):
    """Everything that a deployment may choose about the gRPC port. All times are seconds of Trio's clock.

    `max_receive_bytes` bounds one request message, before and after decompression; `max_send_bytes` one response message before
    compression. `header_bytes_max` bounds the headers of a call, counted as HTTP/2 counts them (32 bytes for each field);
    `streams_per_connection_max` the calls that a connection may have at the same time (clients queue the rest).

    Keepalive, with the meaning that gRPC gives to the channel arguments of the same names: after `keepalive_time_s` without a
    byte from the client the server pings, and closes when `keepalive_timeout_s` brings no byte; without calls only when
    `keepalive_permit_without_calls`; at most `http2_max_pings_without_data` pings (0: any number) without headers or data sent
    in between. A client may ping every `http2_min_recv_ping_interval_s` (without calls every two hours, unless
    `keepalive_permit_without_calls`); more than `http2_max_ping_strikes` pings that come too early close the connection (0:
    never). A connection is asked to end after `max_connection_age_s` and ended `max_connection_age_grace_s` later (None: never).

    `compression`: how hard response messages are compressed, for clients that accept gzip or deflate.
    """

    port: int = 8001
    max_receive_bytes: int = GRPC_MESSAGE_BYTES_MAX
    max_send_bytes: int = GRPC_MESSAGE_BYTES_MAX
    header_bytes_max: int = GRPC_HEADER_BYTES_MAX
    streams_per_connection_max: int = GRPC_STREAMS_PER_CONNECTION_MAX
    keepalive_time_s: float = 7200.0
    keepalive_timeout_s: float = 20.0
    keepalive_permit_without_calls: bool = False
    http2_max_pings_without_data: int = 2
    http2_min_recv_ping_interval_s: float = 300.0
    http2_max_ping_strikes: int = 2
    max_connection_age_s: float | None = None
    max_connection_age_grace_s: float | None = None
    compression: CompressionLevel = "none"
