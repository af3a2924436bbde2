"""Http2Server: one HTTP/2 connection (RFC 9113) as its server sees it. Bytes in, events out; calls in, bytes out.

Rules: the peer's bytes go into `receive`; what is done with the connection is done through the other methods, and every one
may leave output, which is taken with `take_output`. Methods that name a stream do nothing when it is no more: an event that says
so may still be unread. The bytes become frames in frame_reader.py.

A rule broken for one stream resets that stream; a rule broken for the connection ends it with a GOAWAY. What costs us and gives
nothing is on budgets (budget.py): frames that carry nothing here, streams that are reset in streams.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import msgspec

from tpy import limits
from tpy.frontends.core.budget import Budget
from tpy.frontends.grpc.transport.core.calls import Fields, MalformedHeaders, RequestHead, check_fields, parse_request_head
from tpy.frontends.grpc.transport.core.frame_reader import ANY_NUMBER, FrameReader, HeaderBlock
from tpy.frontends.grpc.transport.core.streams import Http2Stream, Outbound, Piece, StreamTable
from tpy.frontends.grpc.transport.core.timing import PingGuard, PingRules
from tpy.http2 import codes
from tpy.http2.codes import (
    SETTINGS_ACK,
    ConnectionFault,
    Http2Code,
    goaway_frame,
    ping_frame,
    settings_frame,
    window_update_frame,
)
from tpy.http2.header_blocks import HeaderReader
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


class RequestBegan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The headers of a new stream have arrived."""

    stream_id: int
    head: RequestHead


class DataArrived(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Bytes of a request, without padding; with `ended` the last ones (possibly none). Once they are used or copied, say so with
    `Http2Server.credit`."""

    stream_id: int
    data: memoryview
    ended: bool


class StreamEnded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The stream is no more: reset by the peer (`by_peer`), or by us because the peer broke a rule. Nothing can be sent on it."""

    stream_id: int
    code: Http2Code | int
    by_peer: bool


class ConnectionEnded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The peer broke a rule of the connection. A GOAWAY has been queued; all streams are no more."""

    code: Http2Code
    text: str


Event = RequestBegan | DataArrived | StreamEnded | ConnectionEnded


_DRAIN_PING = b"draining"
_KEEPALIVE_PING = b"tpy-live"


class Http2Server:
    """One connection. `now_ns`: monotonic."""

    def __init__(self, rules: Http2Rules, now_ns: int) -> None:
        block_bytes_max = 2 * rules.header_bytes_max  # beyond it the connection ends, below it only the call
        self._rules = rules
        self._now_ns = now_ns
        self._out = Outbound()
        self._streams = StreamTable(self._out, rules.streams_max, (rules.stream_window, rules.connection_window), now_ns)
        self._out.on_answered = self._streams.answered
        self._headers: HeaderReader[RequestHead] = HeaderReader(
            partial(parse_request_head, header_bytes_max=rules.header_bytes_max), list_bytes_max=block_bytes_max
        )
        self._frames = FrameReader(self, frame_bytes_max=rules.frame_bytes_max, block_bytes_max=block_bytes_max)
        self._idle_frames = Budget(limits.GRPC_IDLE_FRAMES_BURST_MAX, limits.GRPC_IDLE_FRAMES_PER_S_MAX, now_ns)
        self._earned_at = 0
        self._ping_guard = PingGuard(rules.pings)
        self._events: list[Event] = []
        self._stream_id_max = codes.STREAM_ID_MAX
        """Streams beyond it are refused: what the last GOAWAY said."""
        self.is_settled = False
        """The peer has acknowledged our settings."""
        self.is_closed = False
        """Nothing more is read; what is queued is all that will be sent."""
        self._out.control(rules.greeting())

    # What the driver looks at

    @property
    def open_streams(self) -> int:
        """Requests that are not answered whole."""
        return len(self._streams)

    @property
    def frames_sent(self) -> int:
        """HEADERS and DATA frames so far."""
        return self._out.frames_sent

    @property
    def has_output(self) -> bool:
        """True if `take_output` would give something."""
        return bool(self._out.pieces)

    @property
    def is_drained(self) -> bool:
        """After `finish_goaway`: every stream that was accepted is answered."""
        return self._stream_id_max != codes.STREAM_ID_MAX and not len(self._streams)

    def queued_bytes(self, stream_id: int) -> int:
        """Response bytes of a stream that wait for windows or for output to be taken."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.queued_bytes

    # Calls in

    def take_output(self) -> list[Piece]:
        """Returns the bytes to be written now, in order."""
        out = self._out
        return out.take() if out.pieces or out.ready else []

    def credit(self, stream_id: int, size: int) -> None:
        """`size` bytes of DataArrived have been used or copied: the peer may send as many more."""
        self._streams.credit(stream_id, size)

    def send_headers(self, stream_id: int, fields: Fields) -> None:
        """Begin a response that has messages."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._out.headers(stream, fields)

    def send_data(self, stream_id: int, parts: Sequence[Piece], size: int) -> None:
        """`size` bytes in `parts`, which must stay as they are until they are written."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._out.data(stream, parts, size)

    def finish(self, stream_id: int, trailers: Fields) -> None:
        """End a response, behind what is queued; alone, it is all of the response."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._out.finish(stream, trailers)

    def respond(self, stream_id: int, headers: Fields, parts: Sequence[Piece], size: int, trailers: Fields) -> None:
        """`send_headers`, `send_data` and `finish` in one."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._out.respond(stream, headers, parts, size, trailers)

    def reset(self, stream_id: int, code: Http2Code) -> None:
        """End a stream without (the rest of) a response. No event follows."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._streams.drop(stream, code)

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        self._out.control(ping_frame(_KEEPALIVE_PING, ack=False))

    def begin_goaway(self) -> None:
        """Ask the peer to open no more streams; streams that are under way are still accepted, until it has answered the ping
        that goes along, or until `finish_goaway`."""
        if not self.is_closed:
            self._out.control(goaway_frame(codes.STREAM_ID_MAX, Http2Code.NO_ERROR))
            self._out.control(ping_frame(_DRAIN_PING, ack=False))

    def finish_goaway(self) -> None:
        """Accept no further streams. Idempotent."""
        if self._stream_id_max == codes.STREAM_ID_MAX and not self.is_closed:
            self._stream_id_max = self._streams.last_id
            self._out.control(goaway_frame(self._stream_id_max, Http2Code.NO_ERROR))

    def close(self, code: Http2Code, text: str) -> None:
        """End the connection now: a GOAWAY is the last that is sent. Streams that are open are no more; no events follow."""
        if not self.is_closed:
            self.is_closed = True
            self._out.control(goaway_frame(self._streams.last_id, code, text))
            self._streams.clear()

    # Bytes in

    @property
    def has_input(self) -> bool:
        """True if frames have arrived that are still to be read, by `receive` without further bytes."""
        return self._frames.unread is not None and not self.is_closed

    def receive(self, data: bytes, now_ns: int, frames_max: int = ANY_NUMBER) -> list[Event]:
        """Bytes of the peer have arrived; what the first `frames_max` frames mean, where large ones that are not DATA count as
        several. While there is more (`has_input`), no further bytes may be given."""
        self._now_ns = now_ns
        events = self._events = []
        if self.is_closed:
            return events
        try:
            if self._out.is_overdue:
                raise ConnectionFault(Http2Code.ENHANCE_YOUR_CALM, "too many answers are not taken")
            self._frames.read(data, frames_max)
        except ConnectionFault as fault:
            self.close(fault.code, fault.text)
            events.append(ConnectionEnded(code=fault.code, text=fault.text))
        return events

    # Frames (FrameHandler)

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self._HANDLERS[kind](self, flags, stream_id, payload)

    def on_unknown_frame(self) -> None:
        self._spend_idle_frame("unknown frames")

    def on_empty_data(self) -> None:
        self._spend_idle_frame("empty DATA frames")

    def begin_data(self, stream_id: int, length: int, padding: int) -> Http2Stream | None:
        self._streams.take_connection_window(length)
        stream = self._stream_for_data(stream_id, length)
        if stream is None:
            self._streams.credit_ignored(length)
        elif padding:
            self._streams.credit(stream_id, padding)
        return stream

    def _stream_for_data(self, stream_id: int, length: int) -> Http2Stream | None:
        """The stream that takes the data; None: it is to be ignored."""
        stream = self._streams.get(stream_id)
        if stream is None:
            self._streams.check_not_idle(stream_id, "DATA")
            dropped = self._streams.was_dropped(stream_id)
            if not (dropped and length):
                self._spend_idle_frame("DATA on closed streams")
            if not dropped:
                self._streams.refuse(stream_id, Http2Code.STREAM_CLOSED)
            return None
        if stream.peer_ended:
            self._fail(stream, Http2Code.STREAM_CLOSED)
            return None
        stream.receive_window -= length
        if stream.receive_window < 0:
            self._fail(stream, Http2Code.FLOW_CONTROL_ERROR)
            return None
        return stream

    def on_data(self, stream: Http2Stream, data: memoryview, *, ended: bool) -> None:
        if self._streams.get(stream.id) is not stream:
            return  # it was reset while the frame was under way
        missing = stream.content_missing
        if missing is not None:
            missing = stream.content_missing = missing - len(data)
            if missing < 0 or (ended and missing):
                self._fail(stream, Http2Code.PROTOCOL_ERROR)
                return
        if ended:
            stream.peer_ended = True
        self._events.append(DataArrived(stream_id=stream.id, data=data, ended=ended))

    # Headers

    def on_block(self, block: HeaderBlock) -> None:
        streams = self._streams
        stream_id = block.stream_id
        if stream_id <= streams.last_id:
            self._on_trailers(block)
            return
        streams.last_id = stream_id
        try:
            head = self._headers.request(block.data)
        except MalformedHeaders:
            streams.spend_reset(self._now_ns)
            streams.refuse(stream_id, Http2Code.PROTOCOL_ERROR)
            return
        if stream_id > self._stream_id_max or streams.is_full:
            streams.spend_reset(self._now_ns)
            streams.refuse(stream_id, Http2Code.REFUSED_STREAM)
            return
        stream = streams.open(stream_id, head.content_length)
        self._events.append(RequestBegan(stream_id=stream_id, head=head))
        if block.ended:
            self.on_data(stream, memoryview(b""), ended=True)

    def _on_trailers(self, block: HeaderBlock) -> None:
        headers = self._headers.decode(block.data)
        stream = self._streams.get(block.stream_id)
        if stream is None:
            if not self._streams.was_dropped(block.stream_id):
                raise ConnectionFault(Http2Code.STREAM_CLOSED, f"HEADERS on stream {block.stream_id}, which is closed")
            self._spend_idle_frame("HEADERS on closed streams")
        elif stream.peer_ended:
            self._fail(stream, Http2Code.STREAM_CLOSED)
        elif not block.ended:
            self._fail(stream, Http2Code.PROTOCOL_ERROR)
        else:
            try:
                check_fields(headers)
            except MalformedHeaders:
                self._fail(stream, Http2Code.PROTOCOL_ERROR)
                return
            self.on_data(stream, memoryview(b""), ended=True)

    # Frames of the connection and of the state of streams

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise ConnectionFault(Http2Code.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._spend_idle_frame("PRIORITY frames")
        if len(payload) != 5:
            stream = self._streams.get(stream_id)
            if stream is None:
                raise ConnectionFault(Http2Code.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
            self._fail(stream, Http2Code.FRAME_SIZE_ERROR)

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Http2Code.FRAME_SIZE_ERROR, f"RST_STREAM of {len(payload)} bytes")
        self._streams.check_not_idle(stream_id, "RST_STREAM")
        stream = self._streams.get(stream_id)
        if stream is None:
            self._spend_idle_frame("RST_STREAM on closed streams")
            return
        self._streams.spend_reset(self._now_ns)
        self._idle_frames.refund(limits.GRPC_IDLE_FRAMES_PER_ANSWER_FRAME)
        self._streams.close(stream)
        self._events.append(StreamEnded(stream_id=stream_id, code=int.from_bytes(payload, "big"), by_peer=True))

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(Http2Code.PROTOCOL_ERROR, f"SETTINGS on stream {stream_id}")
        self._spend_idle_frame("SETTINGS frames")
        if flags & codes.ACK:
            if payload:
                raise ConnectionFault(Http2Code.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS with payload")
            self.is_settled = True
            return
        if len(payload) % 6:
            raise ConnectionFault(Http2Code.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        if len(payload) > 6 * limits.GRPC_SETTINGS_MAX:
            raise ConnectionFault(Http2Code.ENHANCE_YOUR_CALM, f"SETTINGS of {len(payload)} bytes")
        pairs = list(struct.iter_unpack(">HI", payload))
        last = {name: index for index, (name, _) in enumerate(pairs)}
        streams = self._streams.all()
        for index, (name, value) in enumerate(pairs):
            if name == codes.INITIAL_WINDOW_SIZE and index < last[name] and value <= codes.WINDOW_MAX:
                continue  # the windows of all streams are moved once
            self._out.apply_setting(name, value, streams)
        self._out.control(SETTINGS_ACK)
        self._out.write_out()

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ConnectionFault(Http2Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(Http2Code.PROTOCOL_ERROR, f"PING on stream {stream_id}")
        if len(payload) != 8:
            raise ConnectionFault(Http2Code.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        self._spend_idle_frame("PING frames")
        if flags & codes.ACK:
            if payload == _DRAIN_PING:
                self.finish_goaway()
            return
        if not self._ping_guard.allows(self._now_ns, calls=len(self._streams) > 0, frames_sent=self._out.frames_sent):
            raise ConnectionFault(Http2Code.ENHANCE_YOUR_CALM, "too_many_pings")  # the words that gRPC's clients look for
        self._out.control(ping_frame(payload, ack=True))

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(Http2Code.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}")
        if len(payload) < 8:
            raise ConnectionFault(Http2Code.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
        self._spend_idle_frame("GOAWAY frames")

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Http2Code.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {len(payload)} bytes")
        self._spend_idle_frame("WINDOW_UPDATE frames")
        increment = int.from_bytes(payload, "big") & codes.WINDOW_MAX
        if stream_id == 0:
            if not increment:
                raise ConnectionFault(Http2Code.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            if not self._out.open_window(increment):
                raise ConnectionFault(Http2Code.FLOW_CONTROL_ERROR, "the window of the connection grows too large")
            return
        self._streams.check_not_idle(stream_id, "WINDOW_UPDATE")
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if not increment:
            self._fail(stream, Http2Code.PROTOCOL_ERROR)
        elif not self._out.open_stream_window(stream, increment):
            self._fail(stream, Http2Code.FLOW_CONTROL_ERROR)

    _HANDLERS: ClassVar[dict[int, Callable[[Http2Server, int, int, bytes], None]]] = {
        codes.PRIORITY: _on_priority,
        codes.RST_STREAM: _on_rst_stream,
        codes.SETTINGS: _on_settings,
        codes.PUSH_PROMISE: _on_push_promise,
        codes.PING: _on_ping,
        codes.GOAWAY: _on_goaway,
        codes.WINDOW_UPDATE: _on_window_update,
    }

    def _fail(self, stream: Http2Stream, code: Http2Code) -> None:
        """The peer broke a rule on this stream."""
        self._streams.spend_reset(self._now_ns)
        self._streams.drop(stream, code)
        self._events.append(StreamEnded(stream_id=stream.id, code=code, by_peer=False))

    def _spend_idle_frame(self, what: str) -> None:
        if self._idle_frames.spend(self._now_ns):
            return
        earned = self._out.frames_sent - self._earned_at
        self._earned_at += earned
        self._idle_frames.refund(earned * limits.GRPC_IDLE_FRAMES_PER_ANSWER_FRAME)
        if not self._idle_frames.spend(self._now_ns):
            raise ConnectionFault(Http2Code.ENHANCE_YOUR_CALM, f"too many {what} that carry nothing")
