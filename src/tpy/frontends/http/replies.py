"""The answers of one connection, written in the order of their requests.

A pending reply is queued when a request is taken up; whoever answers fills it, in any order; everything at the head of the
queue that is complete goes out at once, with one `send` per answer, on the task that filled it. Only when the socket is full
does a writer task take over, until it has caught up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import trio

from tpy.errors import InvariantViolation
from tpy.frontends.http.message import HttpReply, reason_phrase
from tpy.frontends.transport import GONE, Wire, size_of, unsent
from tpy.limits import HTTP_READER_BYTES_PER_S_MIN

_JOINED_BYTES_MAX = 16 * 1024
"""Answers up to this size are copied into one buffer: cheaper than a gathering write."""

_STOPPING_TIMEOUT_S = 5.0
"""The write time-out while the server stops: a reader that is stuck is not to use up the exit time-out."""

_OK = b"HTTP/1.1 200 OK\r\n"

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Piece = bytes | memoryview


class Pending:
    """A reply that is owed. `cancel` is called when the connection ends before the answer is complete."""

    __slots__ = ("bytes_held", "cancel", "head_only", "keep_alive", "reply", "version")

    def __init__(self, *, version: str, keep_alive: bool, head_only: bool, bytes_held: int) -> None:
        self.version = version
        self.keep_alive = keep_alive
        self.head_only = head_only
        self.bytes_held = bytes_held
        self.reply: HttpReply | None = None
        self.cancel: Callable[[], None] | None = None


def connection_field(pending: Pending, *, close: bool) -> bytes | None:
    """Returns the value of the Connection header: none where the version's default is meant."""
    if close:
        return b"close"
    return b"keep-alive" if pending.version == "1.0" else None


class ReplyQueue:
    """The replies of one connection, in order. `spawn` starts a task in the connection's nursery; `progressed` is called when an
    answer has left the queue and when a full socket has taken everything again; `failed` when the connection turns out gone or
    stuck."""

    def __init__(
        self,
        wire: Wire,
        *,
        write_timeout_s: float,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        progressed: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        self.blocked = False
        """The socket is full: bytes wait for the writer task."""
        self.closing = False
        """The last answer that this connection gets is on its way; nothing is queued behind it."""
        self.stopping = False
        """The server wants to stop: the connection closes with the last answer in the queue."""
        self.bytes_held = 0
        """Sizes of the request bodies of the pending replies."""
        self._wire = wire
        self._write_timeout_s = write_timeout_s
        self._spawn = spawn
        self._progressed = progressed
        self._failed = failed
        self.owed: deque[Pending] = deque()
        """The replies that have not left, in order."""
        self._unsent: list[Piece] = []
        self._taken = trio.Event()
        self._patience: trio.CancelScope | None = None
        self._due_s = 0.0

    @property
    def head_version(self) -> str | None:
        """The HTTP version of the request whose answer is next; None when no answer is owed."""
        return self.owed[0].version if self.owed else None

    def begin_stop(self) -> None:
        """The server stops: the last answer closes the connection, and a reader who takes nothing is given up sooner."""
        self.stopping = True
        self._write_timeout_s = min(self._write_timeout_s, _STOPPING_TIMEOUT_S)
        now_s = trio.current_time()
        self._due_s = min(self._due_s, now_s + self._write_timeout_s + _seconds_for(self._unsent))
        if self._patience is not None:
            self._patience.deadline = min(self._patience.deadline, now_s + self._write_timeout_s, self._due_s)

    def reserve(self, *, version: str, keep_alive: bool, head_only: bool, bytes_held: int) -> Pending:
        """Queue the next reply."""
        pending = Pending(version=version, keep_alive=keep_alive, head_only=head_only, bytes_held=bytes_held)
        self.owed.append(pending)
        self.bytes_held += bytes_held
        return pending

    def fill(self, pending: Pending, reply: HttpReply) -> None:
        """Complete a reply; written at once when everything before it is."""
        pending.reply = reply
        pending.cancel = None
        if self.owed and pending is self.owed[0]:
            self.flush()

    def flush(self) -> None:
        """Write what is complete at the head of the queue."""
        left = False
        while self.owed and not self.blocked and not self.closing:
            pending = self.owed[0]
            reply = pending.reply
            if reply is None:
                break
            self.owed.popleft()
            self.bytes_held -= pending.bytes_held
            self.write(self._render(pending, reply))
            left = True
        if left:
            self._progressed()

    def closes_after(self, pending: Pending) -> bool:
        """Returns True if the answer at the head of the queue is the connection's last."""
        return not pending.keep_alive or (self.stopping and len(self.owed) <= 1)

    def leave(self, pending: Pending, *, close: bool) -> None:
        """The answer at the head of the queue was written by other means."""
        if not self.owed:
            return  # the connection has ended meanwhile
        if pending is not self.owed[0]:
            raise InvariantViolation("an answer left the queue before its turn")
        self.owed.popleft()
        self.bytes_held -= pending.bytes_held
        self.closing = self.closing or close
        self.flush()  # a refusal may have been filled in behind it
        self._progressed()

    def cancel_all(self) -> None:
        """The connection is over: nobody waits for the answers."""
        self.closing = True
        while self.owed:
            pending = self.owed.popleft()
            if pending.cancel is not None:
                pending.cancel()
                pending.cancel = None
        self._unsent = []
        self._taken.set()

    def write(self, pieces: list[Piece]) -> None:
        """Hand `pieces` to the connection, now or through the writer task."""
        if self.blocked:
            self._unsent += pieces
            self._due_s += _seconds_for(pieces)
            return
        try:
            sent = self._wire.send_nowait(pieces)
        except GONE:
            self._failed()
            return
        if len(pieces) == 1 and sent == len(pieces[0]):
            return
        rest = unsent(pieces, sent)
        if rest:
            self._unsent = rest
            self.blocked = True
            self._taken = trio.Event()
            self._spawn(self._write_rest)

    async def wait_taken(self) -> None:
        """Wait until nothing is left for the writer task."""
        while self.blocked:
            await self._taken.wait()

    def _render(self, pending: Pending, reply: HttpReply) -> list[Piece]:
        close = not pending.keep_alive or (self.stopping and not self.owed)
        self.closing = close
        connection = None if not close and pending.version == "1.1" else connection_field(pending, close=close)
        status = _OK if reply.status == 200 else b"HTTP/1.1 %d %b\r\n" % (reply.status, reason_phrase(reply.status))
        kind = reply.content_type.encode()
        head = b"%bContent-Type: %b\r\nContent-Length: %d\r\n" % (status, kind, reply.content_length)
        for name, value in reply.headers:
            head += f"{name}: {value}\r\n".encode("latin-1")
        head += b"\r\n" if connection is None else b"Connection: %b\r\n\r\n" % connection
        if pending.head_only:
            return [head]
        if reply.content_length <= _JOINED_BYTES_MAX:
            return [b"".join((head, *reply.parts))]
        return [head, *reply.parts]

    async def _write_rest(self) -> None:
        """The writer task, in the connection's nursery. A reader has the write time-out for each next byte, and the time that all
        of them need at the lowest rate we serve: else one byte a minute would hold an answer for days."""
        now_s = trio.current_time()
        self._due_s = now_s + self._write_timeout_s + _seconds_for(self._unsent)
        try:
            while self._unsent:
                deadline_s = min(trio.current_time() + self._write_timeout_s, self._due_s)
                with trio.CancelScope(deadline=deadline_s) as self._patience:
                    sent = await self._wire.send_some(self._unsent)
                    self._unsent = unsent(self._unsent, sent)  # which others may have added to meanwhile
                if self._patience.cancelled_caught:
                    self._failed()
                    return
        except GONE:
            self._failed()
            return
        self.blocked = False
        self._taken.set()
        self.flush()
        self._progressed()


def _seconds_for(pieces: Sequence[Piece]) -> float:
    """The time that the slowest reader that is served may take for these pieces."""
    return size_of(pieces) / HTTP_READER_BYTES_PER_S_MIN
