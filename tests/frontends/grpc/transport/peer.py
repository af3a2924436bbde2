"""A client by hand: makes frames, right and wrong ones, for an Http2Server, and reads what it answers."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import hpack
from hyperframe.frame import Frame, GoAwayFrame, RstStreamFrame

from tpy.frontends.grpc.transport.core.http2 import DataArrived, Event, Http2Rules, Http2Server, RequestBegan
from tpy.frontends.grpc.transport.core.timing import PingRules
from tpy.http2 import codes
from tpy.http2.codes import Http2Code
from tpy.units import KIB, NS_PER_S

PING_RULES = PingRules(
    keepalive_time_ns=7200 * NS_PER_S,
    keepalive_timeout_ns=20 * NS_PER_S,
    permit_without_calls=False,
    pings_without_data_max=2,
    receive_interval_ns_min=300 * NS_PER_S,
    strikes_max=2,
)
PATH = "/test.Service/Method"
HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "test"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


def rules(**changes: object) -> Http2Rules:
    values = {"header_bytes_max": 16 * KIB, "streams_max": 100, "pings": PING_RULES, **changes}
    return Http2Rules(**values)  # type: ignore[arg-type]


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Any frame, whether it makes sense or not."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(codes.SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def data(stream_id: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(codes.DATA, codes.END_STREAM if end else 0, stream_id, payload)


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(codes.WINDOW_UPDATE, 0, stream_id, struct.pack(">I", increment))


def rst_stream(stream_id: int, code: int = Http2Code.CANCEL) -> bytes:
    return frame(codes.RST_STREAM, 0, stream_id, struct.pack(">I", code))


def ping(payload: bytes = b"12345678", *, ack: bool = False) -> bytes:
    return frame(codes.PING, codes.ACK if ack else 0, 0, payload)


def message(body: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message with its prefix."""
    return bytes([compressed]) + len(body).to_bytes(4, "big") + body


GREETING = codes.PREFACE + settings()


class Peer:
    """An Http2Server and its client. Without changes, the greeting is over and its answers have been read."""

    def __init__(self, *, greeted: bool = True, now_ns: int = 0, **changes: object) -> None:
        self.now_ns = now_ns
        self.server = Http2Server(rules(**changes), now_ns)
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.events: list[Event] = []
        if greeted:
            self.send(GREETING, frame(codes.SETTINGS, codes.ACK, 0))
            self.frames()

    def headers(
        self,
        stream_id: int,
        headers: Iterable[tuple[str, str]] = HEADERS,
        *,
        end: bool = False,
        flags: int = codes.END_HEADERS,
    ) -> bytes:
        """HEADERS with a whole block."""
        block = self.encoder.encode(list(headers))
        return frame(codes.HEADERS, flags | (codes.END_STREAM if end else 0), stream_id, block)

    def request(self, stream_id: int, body: bytes = b"") -> bytes:
        """A whole request with one message."""
        return self.headers(stream_id) + data(stream_id, message(body), end=True)

    def send(self, *frames: bytes) -> list[Event]:
        """All at once; the events."""
        events = self.server.receive(b"".join(frames), self.now_ns)
        self.events += events
        return events

    def output(self) -> bytes:
        """Everything that can be taken."""
        pieces: list[bytes] = []
        while self.server.has_output:
            pieces += map(bytes, self.server.take_output())
        return b"".join(pieces)

    def frames(self) -> list[Frame]:
        """The frames that can be taken."""
        return parse_frames(self.output())

    def ended_with(self) -> Http2Code | None:
        """The code of the last GOAWAY; None: the connection lives."""
        found = [frame for frame in self.frames() if isinstance(frame, GoAwayFrame)]
        if not self.server.is_closed:
            assert not found
            return None
        return Http2Code(found[-1].error_code)

    def resets(self) -> dict[int, Http2Code]:
        """Streams that were reset, with their codes."""
        return {frame.stream_id: Http2Code(frame.error_code) for frame in self.frames() if isinstance(frame, RstStreamFrame)}

    def begun(self) -> list[int]:
        """The requests that have begun."""
        return [event.stream_id for event in self.events if isinstance(event, RequestBegan)]

    def body(self, stream_id: int) -> tuple[bytes, bool]:
        """A request as far as it has arrived, and True if it has ended."""
        pieces = [event for event in self.events if isinstance(event, DataArrived) and event.stream_id == stream_id]
        return b"".join(bytes(piece.data) for piece in pieces), any(piece.ended for piece in pieces)


def parse_frames(output: bytes) -> list[Frame]:
    """Whole frames."""
    frames: list[Frame] = []
    at = 0
    while at < len(output):
        parsed, length = Frame.parse_frame_header(memoryview(output)[at : at + 9])
        parsed.parse_body(memoryview(output)[at + 9 : at + 9 + length])
        frames.append(parsed)
        at += 9 + length
    return frames
