"""GrpcPort: the state that all connections of a port share."""

from __future__ import annotations

from tpy.clock import Clock
from tpy.deliveries import Deliveries
from tpy.errors import InvalidArgument
from tpy.frontends.grpc.transport.call import Handlers
from tpy.frontends.grpc.transport.compression import MessageCodec
from tpy.frontends.grpc.transport.core.http2 import Http2Rules
from tpy.frontends.grpc.transport.core.timing import PingRules
from tpy.frontends.grpc.transport.options import GrpcOptions
from tpy.frontends.transport import Port
from tpy.units import NS_PER_S

ALPN = ("h2",)


class GrpcPort(Port):
    """Options in the units of the cores, and the connections that are open. Raises InvalidArgument for options that cannot be
    served."""

    def __init__(
        self,
        options: GrpcOptions,
        handlers: Handlers,
        clock: Clock,
        deliveries: Deliveries | None = None,
    ) -> None:
        _check(options)
        super().__init__(options, clock, name="gRPC", alpn=ALPN, alpn_required=True)
        self.options = options
        self.handlers = handlers
        self.deliveries = deliveries or Deliveries()
        self.codec = MessageCodec(options.compression, options.max_receive_bytes)
        self.age_ns = _ns(options.max_connection_age_s)
        self.age_grace_ns = _ns(options.max_connection_age_grace_s)
        self.rules = Http2Rules(
            header_bytes_max=options.header_bytes_max,
            streams_max=options.streams_per_connection_max,
            pings=PingRules(
                keepalive_time_ns=round(options.keepalive_time_s * NS_PER_S),
                keepalive_timeout_ns=round(options.keepalive_timeout_s * NS_PER_S),
                permit_without_calls=options.keepalive_permit_without_calls,
                pings_without_data_max=options.http2_max_pings_without_data,
                receive_interval_ns_min=round(options.http2_min_recv_ping_interval_s * NS_PER_S),
                strikes_max=options.http2_max_ping_strikes,
            ),
        )


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NS_PER_S)


def _check(options: GrpcOptions) -> None:
    for name in ("max_receive_bytes", "max_send_bytes", "header_bytes_max", "streams_per_connection_max"):
        value = getattr(options, name)
        if not 0 < value < 2**31:
            raise InvalidArgument(f"gRPC option {name} must be between 1 and {2**31 - 1}, got {value}")
    for name in ("keepalive_time_s", "keepalive_timeout_s", "max_connection_age_s"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise InvalidArgument(f"gRPC option {name} must be greater than 0, got {value}")
