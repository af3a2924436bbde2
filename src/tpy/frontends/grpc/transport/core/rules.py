"""Http2Rules: what we allow the peer, and the bytes that say so."""

from __future__ import annotations

import msgspec

from tpy.frontends.grpc.transport.core.pings import PingRules
from tpy.http2 import codes
from tpy.http2.frames import settings_frame, window_update_frame
from tpy.limits import GRPC_CONNECTION_WINDOW_BYTES, GRPC_STREAM_WINDOW_BYTES
from tpy.units import MIB


class Http2Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes. `stream_window`, `connection_window`: what the peer may send ahead of what was used of it."""

    header_bytes_max: int
    streams_max: int
    pings: PingRules
    stream_window: int = GRPC_STREAM_WINDOW_BYTES
    connection_window: int = GRPC_CONNECTION_WINDOW_BYTES
    frame_bytes_max: int = MIB

    def greeting(self) -> bytes:
        """Returns the first bytes that the server sends."""
        settings = settings_frame(
            (
                (codes.MAX_CONCURRENT_STREAMS, self.streams_max),
                (codes.INITIAL_WINDOW_SIZE, self.stream_window),
                (codes.MAX_FRAME_SIZE, self.frame_bytes_max),
                (codes.MAX_HEADER_LIST_SIZE, self.header_bytes_max),
            )
        )
        if self.connection_window > codes.WINDOW_DEFAULT:
            settings += window_update_frame(0, self.connection_window - codes.WINDOW_DEFAULT)
        return settings
