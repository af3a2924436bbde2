"""Shared by the targets: rules, frames, random cuts."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from fuzz.chance import Chance
from tpy.frontends.grpc.transport.core.http2 import Http2Rules
from tpy.frontends.grpc.transport.core.timing import PingRules
from tpy.units import KIB, NS_PER_S

PINGS = PingRules(
    keepalive_time_ns=10 * NS_PER_S,
    keepalive_timeout_ns=NS_PER_S,
    permit_without_calls=False,
    pings_without_data_max=2,
    receive_interval_ns_min=NS_PER_S,
    strikes_max=0,
)


def random_rules(chance: Chance) -> Http2Rules:
    """Small numbers, so that limits are met often."""
    return Http2Rules(
        header_bytes_max=chance.choice((1 * KIB, 16 * KIB)),
        streams_max=chance.choice((1, 3, 100)),
        pings=PINGS,
        stream_window=chance.choice((100, 3000, 70_000)),
        connection_window=chance.choice((66_000, 100_000)),
        frame_bytes_max=chance.choice((16_384, 20_000)),
    )


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Any frame, whether it makes sense or not."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def cuts(chance: Chance, data: bytes) -> Iterator[bytes]:
    """`data` in pieces: often whole, sometimes byte by byte (not all of much), mostly something in between."""
    size_max = max(chance.choice((1, 3, 10, 100, 1000, len(data) + 1)), len(data) // 200)
    at = 0
    while at < len(data):
        size = chance.randint(1, size_max)
        yield data[at : at + size]
        at += size
