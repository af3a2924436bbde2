"""The streams of a connection, and what goes out on them. Stream: what HTTP/2 keeps of one request and its response.

A stream is *idle* until its id has been seen, *closed* when it is in no table any more; in between it is here. The peer's side
is open until `peer_ended`. Our side ends at once with the peer's: a response that is complete before its request asks the peer
to stop with RST_STREAM(NO_ERROR) (RFC 9113, 8.1), so that no stream is half closed on our side only.

Outbound is what goes to the peer, and when. Control frames and headers go out at once, in order. Data goes out while the
windows of its stream and of the connection last and while no more than GRPC_OUTPUT_BYTES_MAX wait to be taken; what cannot go
stays in its stream's queue. Streams with data take turns, a frame each.

StreamTable: the streams of a connection that are open, how they end, and what the peer may send on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tpy.frontends.core.budget import Budget
from tpy.frontends.grpc.transport.core.calls import Fields
from tpy.http2 import codes
from tpy.http2.codes import ConnectionFault, Http2Code, frame_header, rst_stream_frame, window_update_frame
from tpy.http2.header_blocks import HeaderWriter
from tpy.limits import GRPC_OUTPUT_BYTES_MAX, GRPC_OVERDUE_BYTES_MAX, GRPC_RESETS_BURST_MAX, GRPC_RESETS_PER_S_MAX
from tpy.units import KIB


class Http2Stream:
    """Windows and queues of one stream. Bytes; windows may be negative after the peer has made its initial window smaller."""

    __slots__ = (
        "content_missing",
        "id",
        "peer_ended",
        "queue",
        "queued_bytes",
        "receive_credit",
        "receive_window",
        "send_window",
        "trailers",
    )

    def __init__(self, stream_id: int, receive_window: int, send_window: int, content_length: int | None) -> None:
        self.id = stream_id
        self.peer_ended = False
        self.receive_window = receive_window
        self.receive_credit = 0
        """Taken by the application and not yet told to the peer."""
        self.content_missing = content_length
        self.send_window = send_window
        self.queue: deque[bytes | memoryview] = deque()
        self.queued_bytes = 0
        self.trailers: Fields | None = None
        """Set: nothing may follow; they go out behind the queue."""


_JOINED_BYTES_MAX = 16 * KIB
"""Up to this size copying pieces together is cheaper than sending them apart."""

Piece = bytes | memoryview


class Outbound:
    """One for each connection."""

    def __init__(self) -> None:
        self.on_answered: Callable[[Http2Stream], None] = _ignore
        """Called with a stream when its last frame has gone out. Set once, by whoever keeps the streams."""
        self._writer = HeaderWriter()
        self.pieces: list[Piece] = []
        """To be taken."""
        self._size = 0
        self.ready: dict[int, Http2Stream] = {}
        """Streams with data that may go."""
        self._window = codes.WINDOW_DEFAULT
        self._frame_bytes_max = codes.FRAME_BYTES_MIN
        self.initial_window = codes.WINDOW_DEFAULT
        self.frames_sent = 0
        """HEADERS and DATA frames so far: pings are judged by it."""

    # What the peer allows

    def apply_setting(self, name: int, value: int, streams: Sequence[Http2Stream]) -> None:
        """One pair of the peer's SETTINGS; `streams` are open. What it allows goes out with the next `write_out`: behind the
        acknowledgement, before which some peers do not expect it. Raises ConnectionFault for a value that may not be."""
        if name == codes.HEADER_TABLE_SIZE:
            self._writer.limit_table(value)
        elif name == codes.ENABLE_PUSH:
            if value > 1:
                raise ConnectionFault(Http2Code.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
        elif name == codes.INITIAL_WINDOW_SIZE:
            if value > codes.WINDOW_MAX:
                raise ConnectionFault(Http2Code.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
            change, self.initial_window = value - self.initial_window, value
            for stream in streams:
                if not self._widen(stream, change):
                    raise ConnectionFault(Http2Code.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE makes a window too large")
        elif name == codes.MAX_FRAME_SIZE:
            if not codes.FRAME_BYTES_MIN <= value <= codes.FRAME_BYTES_LIMIT:
                raise ConnectionFault(Http2Code.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
            # Frames that are larger than what we keep ready would serve nobody.
            self._frame_bytes_max = min(value, GRPC_OUTPUT_BYTES_MAX)

    def open_window(self, increment: int) -> bool:
        """WINDOW_UPDATE of the connection. False: it grows too large."""
        self._window += increment
        if self._window > codes.WINDOW_MAX:
            return False
        if self.ready:
            self.write_out()
        return True

    def open_stream_window(self, stream: Http2Stream, increment: int) -> bool:
        """WINDOW_UPDATE of a stream. False: it grows too large."""
        if not self._widen(stream, increment):
            return False
        if self.ready:
            self.write_out()
        return True

    def _widen(self, stream: Http2Stream, increment: int) -> bool:
        stream.send_window += increment
        if stream.queue and stream.send_window > 0:
            self.ready[stream.id] = stream
        return stream.send_window <= codes.WINDOW_MAX

    # What is sent

    def control(self, frame: bytes) -> None:
        """A frame that nothing holds back."""
        self._put(frame)

    def headers(self, stream: Http2Stream, fields: Fields) -> None:
        """The headers of a response that has messages."""
        self._put(self._header_frames(stream.id, fields, end_stream=False))

    def data(self, stream: Http2Stream, parts: Sequence[Piece], size: int) -> None:
        """`size` bytes in `parts`, behind what is queued."""
        stream.queue.extend(part for part in parts if len(part))
        stream.queued_bytes += size
        if stream.queue and stream.send_window > 0:
            self.ready[stream.id] = stream
            self.write_out()

    def finish(self, stream: Http2Stream, trailers: Fields) -> None:
        """The end of a response, behind what is queued. May also be all of it."""
        stream.trailers = trailers
        if not stream.queue:
            self._end(stream)

    def respond(self, stream: Http2Stream, headers: Fields, parts: Sequence[Piece], size: int, trailers: Fields) -> None:
        """A whole response with `size` bytes of data in `parts`: as `headers`, `data` and `finish`."""
        fits = size <= self._window and size <= stream.send_window and size <= self._frame_bytes_max
        if not fits or self._size >= GRPC_OUTPUT_BYTES_MAX or stream.queue:
            self.headers(stream, headers)
            self.data(stream, parts, size)
            self.finish(stream, trailers)
            return
        self._window -= size
        self.frames_sent += 1
        begin = self._header_frames(stream.id, headers, end_stream=False)
        end = self._header_frames(stream.id, trailers, end_stream=True)
        between = frame_header(size, codes.DATA, 0, stream.id)
        if size <= _JOINED_BYTES_MAX:
            self._put(b"".join((begin, between, *parts, end)))
        else:
            self._put(begin + between)
            for part in parts:
                self._put(part)
            self._put(end)
        self.on_answered(stream)

    def forget(self, stream: Http2Stream) -> None:
        """The stream is reset: what is queued is not sent."""
        self.ready.pop(stream.id, None)
        stream.queue.clear()
        stream.queued_bytes = 0

    # What is taken

    @property
    def is_overdue(self) -> bool:
        """True if so much waits to be taken that the peer must be abusing us."""
        return self._size > GRPC_OVERDUE_BYTES_MAX

    def take(self) -> list[Piece]:
        """Returns the bytes to be written now, in order; empty: nothing can go."""
        pieces, self.pieces, self._size = self.pieces, [], 0
        if self.ready:
            self.write_out()
        return pieces

    def write_out(self) -> None:
        """Move data from queues to the output as far as it may go."""
        ready = self.ready
        while ready and self._window > 0 and self._size < GRPC_OUTPUT_BYTES_MAX:
            stream_id = next(iter(ready))
            stream = ready.pop(stream_id)
            if stream.send_window <= 0:
                continue  # the peer has made it smaller
            self._send_frame(stream)
            if not stream.queue:
                if stream.trailers is not None:
                    self._end(stream)
            elif stream.send_window > 0:
                ready[stream_id] = stream

    def _send_frame(self, stream: Http2Stream) -> None:
        """One DATA frame, as large as may be; at least one byte may go."""
        queue = stream.queue
        left = min(stream.queued_bytes, stream.send_window, self._window, self._frame_bytes_max)
        stream.queued_bytes -= left
        stream.send_window -= left
        self._window -= left
        self.frames_sent += 1
        self._put(frame_header(left, codes.DATA, 0, stream.id))
        while left:
            part = queue.popleft()
            if len(part) > left:
                view = memoryview(part)
                queue.appendleft(view[left:])
                part = view[:left]
            left -= len(part)
            self._put(part)

    def _end(self, stream: Http2Stream) -> None:
        if stream.trailers is not None:
            self._put(self._header_frames(stream.id, stream.trailers, end_stream=True))
        self.on_answered(stream)

    def _put(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self._size += len(piece)

    def _header_frames(self, stream_id: int, fields: Fields, *, end_stream: bool) -> bytes:
        """HEADERS, with CONTINUATION if the peer's frames are too small."""
        self.frames_sent += 1
        block = self._writer.constant(fields.constant)
        if fields.varying:
            block += self._writer.varying(fields.varying)
        flags = codes.END_STREAM if end_stream else 0
        size_max = self._frame_bytes_max
        if len(block) <= size_max:
            return frame_header(len(block), codes.HEADERS, flags | codes.END_HEADERS, stream_id) + block
        pieces = [frame_header(size_max, codes.HEADERS, flags, stream_id), block[:size_max]]
        for at in range(size_max, len(block), size_max):
            piece = block[at : at + size_max]
            last = codes.END_HEADERS if at + size_max >= len(block) else 0
            pieces += (frame_header(len(piece), codes.CONTINUATION, last, stream_id), piece)
        return b"".join(pieces)


def _ignore(stream: Http2Stream) -> None:
    pass


class StreamTable:
    """Open streams by id; `windows` are (of a stream, of the connection), in bytes: what the peer may send ahead of `credit`."""

    def __init__(self, out: Outbound, streams_max: int, windows: tuple[int, int], now_ns: int) -> None:
        self._out = out
        self._streams_max = streams_max
        self._stream_window, self._connection_window = windows
        self._open: dict[int, Http2Stream] = {}
        self._dropped: dict[int, None] = {}
        """Streams that we reset last: what the peer sent before it knew is ignored."""
        self._resets = Budget(GRPC_RESETS_BURST_MAX, GRPC_RESETS_PER_S_MAX, now_ns)
        self._receive_window = self._connection_window
        self._receive_credit = 0
        self.last_id = 0
        """The highest id that the peer has used."""
        self.get = self._open.get

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Http2Stream]:
        """The open streams, now."""
        return list(self._open.values())

    @property
    def is_full(self) -> bool:
        """True if the peer has as many streams as it may."""
        return len(self._open) >= self._streams_max

    def was_dropped(self, stream_id: int) -> bool:
        """Returns True if we reset the stream a short time ago."""
        return stream_id in self._dropped

    def check_not_idle(self, stream_id: int, frame: str) -> None:
        """Raises ConnectionFault for a stream that the peer has not opened."""
        if stream_id % 2 == 0 or stream_id > self.last_id:
            raise ConnectionFault(Http2Code.PROTOCOL_ERROR, f"{frame} on stream {stream_id}, which was not opened")

    # Beginnings and ends

    def open(self, stream_id: int, content_length: int | None) -> Http2Stream:
        """The peer begins a request."""
        stream = Http2Stream(stream_id, self._stream_window, self._out.initial_window, content_length)
        self._open[stream_id] = stream
        return stream

    def answered(self, stream: Http2Stream) -> None:
        """The response has gone out whole."""
        self._resets.refund(1)
        if stream.peer_ended:
            self.close(stream)
        else:
            self.drop(stream, Http2Code.NO_ERROR)

    def close(self, stream: Http2Stream) -> None:
        """Forget the stream; what it held of the connection's window is the peer's again."""
        del self._open[stream.id]
        self._out.forget(stream)
        self._credit_connection(self._stream_window - stream.receive_window - stream.receive_credit)

    def drop(self, stream: Http2Stream, code: Http2Code) -> None:
        """Reset the stream."""
        self.close(stream)
        self.refuse(stream.id, code)

    def refuse(self, stream_id: int, code: Http2Code) -> None:
        """Reset a stream that is not open."""
        self._dropped[stream_id] = None
        if len(self._dropped) > self._streams_max:
            del self._dropped[next(iter(self._dropped))]
        self._out.control(rst_stream_frame(stream_id, code))

    def spend_reset(self, now_ns: int) -> None:
        """A stream ends unanswered, and it is the peer's doing. Raises ConnectionFault when there are too many."""
        if not self._resets.spend(now_ns):
            raise ConnectionFault(Http2Code.ENHANCE_YOUR_CALM, "too many streams are reset")

    def clear(self) -> None:
        """Forget all streams."""
        for stream in self._open.values():
            self._out.forget(stream)
        self._open.clear()

    # Flow control of what the peer sends

    def take_connection_window(self, size: int) -> None:
        """A DATA frame of `size` bytes begins. Raises ConnectionFault when the peer may not send as much."""
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFault(Http2Code.FLOW_CONTROL_ERROR, "more data than the window of the connection")

    def credit_ignored(self, size: int) -> None:
        """Data that belongs to no open stream has been ignored."""
        self._credit_connection(size)

    def credit(self, stream_id: int, size: int) -> None:
        """`size` bytes of a stream have been used; if it is closed they have been credited then."""
        stream = self._open.get(stream_id)
        if stream is None:
            return
        self._credit_connection(size)
        if stream.peer_ended:
            stream.receive_window += size
            return
        stream.receive_credit += size
        if stream.receive_credit >= self._stream_window // 2:
            stream.receive_window += stream.receive_credit
            self._out.control(window_update_frame(stream_id, stream.receive_credit))
            stream.receive_credit = 0

    def _credit_connection(self, size: int) -> None:
        self._receive_credit += size
        if self._receive_credit >= self._connection_window // 4:
            self._receive_window += self._receive_credit
            self._out.control(window_update_frame(0, self._receive_credit))
            self._receive_credit = 0
