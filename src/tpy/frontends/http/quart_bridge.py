"""One request of an HTTP/1.1 connection of ours, served by the Quart application through Hypercorn's HTTPStream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypercorn.protocol.events import Body, EndBody, Event, Request, Response, StreamClosed
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.typing import ConnectionState

from tpy.errors import Internal
from tpy.frontends.http.application import LoadedApplication
from tpy.frontends.http.message import HttpRequest, error_reply, reason_phrase
from tpy.frontends.http.replies import CONTINUE, Pending, Piece, ReplyQueue, connection_field

BODY = "tpy.body"
"""The key of the body in the state of the ASGI scope."""

CERTIFICATE = "tpy.certificate"
"""The key of what gives the client's certificate."""

_STREAM_ID = 1
_BUFFERED_BYTES_MAX = 64 * 1024
"""A response is collected up to this size, so that an ordinary one is one `send`."""

_COMMENT_CHUNK = b"3\r\n:\n\n\r\n"
"""A comment of an event stream, which readers skip, as one chunk."""

Address = tuple[str, int] | None


class QuartExchange:
    """`pending` is the head of the queue and stays there until the application has answered; then `done` is called. `failed` is
    called when the application broke off in the middle of its answer."""

    def __init__(self, replies: ReplyQueue, pending: Pending, *, done: Callable[[], None], failed: Callable[[], None]) -> None:
        self._replies = replies
        self._pending = pending
        self._done = done
        self._failed = failed
        self._response: Response | None = None
        self._pieces: list[Piece] = []
        self._buffered = 0
        self._head_written = False
        self._chunked = False
        self._streams = False
        self._events = False
        self._close = False
        self._ended = False

    async def run(
        self,
        hosted: LoadedApplication,
        request: HttpRequest,
        certificate: Callable[[], Any],
        client: Address,
        server: Address,
        *,
        secure: bool,
    ) -> None:
        """Run the application on `request`, until it has ended, which is after its answer."""
        async with TaskGroup() as tasks:
            self._stream = HTTPStream(*hosted, tasks, secure, client, server, self._send, _STREAM_ID)
            await self._stream.handle(
                Request(
                    stream_id=_STREAM_ID,
                    headers=[(name.lower(), value) for name, value in request.headers],
                    http_version=request.version,
                    method=request.method.decode("ascii"),
                    raw_path=request.target,
                    # The body goes past Hypercorn and Quart, who would copy it several times, on the loop.
                    state=ConnectionState({BODY: request.body, CERTIFICATE: certificate}),
                )
            )
            request.body = b""
            await self._stream.handle(EndBody(stream_id=_STREAM_ID))

    def probe(self) -> bytes | None:
        """Returns bytes that can be written now, and mean nothing to a peer that is still there: an interim answer before the
        head, a comment between events. None where there is no such thing."""
        if not self._head_written:
            return CONTINUE
        return _COMMENT_CHUNK if self._events and not self._ended else None

    async def _send(self, event: Event) -> None:
        """Take the application's answer, event by event (called by HTTPStream)."""
        match event:
            case Response() if event.status_code == 500 and not any(name == b"content-type" for name, _ in event.headers):
                # Hypercorn's own: the application went without a word, by a failure or because the server ends now.
                self._break_off()
            case Response() if event.status_code >= 200:
                self._begin(event)
            case Body():
                await self._add(event.data)
            case EndBody():
                if not self._ended:
                    self._end()
            case StreamClosed():
                if not self._ended:
                    self._break_off()
                await self._stream.handle(event)
            case _:
                pass  # informational responses mean nothing in HTTP/1.1 here

    def _begin(self, response: Response) -> None:
        headers = [(name.title(), value) for name, value in response.headers]
        names = {name for name, _ in headers}
        wants_close = any(name == b"Connection" and value.lower() == b"close" for name, value in headers)
        sized = b"Content-Length" in names or self._pending.head_only
        self._chunked = not sized and self._pending.version == "1.1"
        self._streams = not sized
        self._events = self._chunked and any(
            name == b"Content-Type" and value.startswith(b"text/event-stream") for name, value in headers
        )
        self._close = wants_close or not (sized or self._chunked) or self._replies.closes_after(self._pending)
        headers = [field for field in headers if field[0] != b"Connection"]
        # Bodies of unknown length come over time: each piece, and the head before the first, is written at once.
        if self._chunked:
            headers.append((b"Transfer-Encoding", b"chunked"))
        connection = connection_field(self._pending, close=self._close)
        self._pieces = [_head(response.status_code, headers, connection)]
        self._response = response

    async def _add(self, data: bytes) -> None:
        self._pieces += (b"%x\r\n" % len(data), data, b"\r\n") if self._chunked else (data,)
        self._buffered += len(data)
        if self._buffered > _BUFFERED_BYTES_MAX or self._streams:
            self._write()
            await self._replies.wait_taken()

    def _write(self) -> None:
        pieces, self._pieces, self._buffered = self._pieces, [], 0
        self._head_written = True
        if pieces:
            self._replies.write(
                [b"".join(pieces)] if len(pieces) > 1 and sum(map(len, pieces)) <= _BUFFERED_BYTES_MAX else pieces
            )

    def _end(self) -> None:
        if self._chunked:
            self._pieces.append(b"0\r\n\r\n")
        self._write()
        self._ended = True
        self._done()
        self._replies.leave(self._pending, close=self._close)

    def _break_off(self) -> None:
        self._ended = True
        self._done()
        if self._head_written or self._replies.stopping:
            self._failed()
        else:
            self._replies.fill(self._pending, error_reply(Internal("unexpected error in the server, its log has the details")))


def _head(status: int, headers: Sequence[tuple[bytes, bytes]], connection: bytes | None) -> bytes:
    """Status line and header lines, with `Connection: <connection>` when given."""
    lines = [b"HTTP/1.1 %d %b" % (status, reason_phrase(status))]
    lines += [b"%b: %b" % field for field in headers]
    if connection is not None:
        lines.append(b"Connection: " + connection)
    lines.append(b"\r\n")
    return b"\r\n".join(lines)
