"""StreamTable: the streams of a connection that are open, how they end, and what the peer may send on them."""

from __future__ import annotations

from tpy.frontends.core.budget import Budget
from tpy.frontends.grpc.transport.core.outbound import Outbound
from tpy.frontends.grpc.transport.core.streams import Stream
from tpy.http2.codes import ConnectionFault, Http2Code
from tpy.http2.frames import rst_stream_frame, window_update_frame
from tpy.limits import GRPC_RESETS_BURST_MAX, GRPC_RESETS_PER_S_MAX


class StreamTable:
    """Open streams by id; `windows` are (of a stream, of the connection), in bytes: what the peer may send ahead of `credit`."""

    def __init__(self, out: Outbound, streams_max: int, windows: tuple[int, int], now_ns: int) -> None:
        self._out = out
        self._streams_max = streams_max
        self._stream_window, self._connection_window = windows
        self._open: dict[int, Stream] = {}
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

    def all(self) -> list[Stream]:
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

    def open(self, stream_id: int, content_length: int | None) -> Stream:
        """The peer begins a request."""
        stream = Stream(stream_id, self._stream_window, self._out.initial_window, content_length)
        self._open[stream_id] = stream
        return stream

    def answered(self, stream: Stream) -> None:
        """The response has gone out whole."""
        self._resets.refund(1)
        if stream.peer_ended:
            self.close(stream)
        else:
            self.drop(stream, Http2Code.NO_ERROR)

    def close(self, stream: Stream) -> None:
        """Forget the stream; what it held of the connection's window is the peer's again."""
        del self._open[stream.id]
        self._out.forget(stream)
        self._credit_connection(self._stream_window - stream.receive_window - stream.receive_credit)

    def drop(self, stream: Stream, code: Http2Code) -> None:
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
