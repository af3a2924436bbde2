"""Stream: what HTTP/2 keeps of one request and its response.

A stream is *idle* until its id has been seen, *closed* when it is in no table any more; in between it is here. The peer's side
is open until `peer_ended`. Our side ends at once with the peer's: a response that is complete before its request asks the peer
to stop with RST_STREAM(NO_ERROR) (RFC 9113, 8.1), so that no stream is half closed on our side only.
"""

from __future__ import annotations

from collections import deque

from tpy.frontends.grpc.transport.core.answers import Fields


class Stream:
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
