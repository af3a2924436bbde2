"""Exchange: one call on its connection; what unary and stream calls have in common."""

from __future__ import annotations

import abc
import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from grpclib.const import Status

from tpy.errors import invariant
from tpy.frontends.grpc.transport.call import Metadata, Parts
from tpy.frontends.grpc.transport.compression import MessageCodec
from tpy.frontends.grpc.transport.core.calls import Fields, RequestHead
from tpy.frontends.grpc.transport.core.http2 import Http2Server
from tpy.frontends.transport import LoopTurns
from tpy.http2.codes import Http2Code

_log = logging.getLogger(__name__)


class OutputWaiter(Protocol):
    """Somebody who waits for output to be written."""

    def on_progress(self) -> None:
        """Some was."""
        ...


class ExchangeConnection(Protocol):
    """The connection as an exchange sees it."""

    server: Http2Server
    codec: MessageCodec
    peer: str
    certificate: Callable[[], Any]
    message_bytes_max: int
    send_bytes_max: int
    spawn: Callable[..., None]
    """Start a task in the connection's nursery."""

    turns: LoopTurns
    behind: set[OutputWaiter]
    """To be told when output is written."""

    def wake(self) -> None:
        """There is output: write it in this turn of the loop, together with what else there is."""
        ...

    def task_begun(self) -> None:
        """A handler is about to start a task for a call."""
        ...

    def forget(self, stream_id: int) -> None:
        """The call has ended: no more events for it, no deadline."""
        ...


class CallState(enum.Enum):
    """OPEN -> ANSWERED (the handler ended it, or the transport for it) or CANCELLED (nobody wants an answer)."""

    OPEN = "open"
    ANSWERED = "answered"
    CANCELLED = "cancelled"


class Exchange(abc.ABC):
    """The context of a call and its end."""

    __slots__ = ("_head", "_link", "_on_cancel", "_stream_id", "deadline_ns", "load_format", "state")

    def __init__(self, link: ExchangeConnection, stream_id: int, head: RequestHead, deadline_ns: int | None) -> None:
        self._link = link
        self._stream_id = stream_id
        self._head = head
        self._on_cancel: Callable[[], None] | None = None
        self.deadline_ns = deadline_ns
        self.load_format = head.load_format
        self.state = CallState.OPEN

    @property
    def path(self) -> str:
        return self._head.path

    @property
    def metadata(self) -> Metadata:
        return self._head.metadata

    @property
    def peer(self) -> str:
        return self._link.peer

    def certificate(self) -> Any:
        return self._link.certificate()

    def fail(self, status: Status, message: str, trailing_metadata: Metadata = ()) -> None:
        if self._may_answer():
            fields = self._end_fields(status, message, trailing_metadata)
            self._set_answered()
            self._link.server.finish(self._stream_id, fields)
            self._link.wake()

    def on_cancel(self, callback: Callable[[], None]) -> None:
        if self.state is CallState.CANCELLED:
            self._notify(callback)
        else:
            self._on_cancel = callback

    # What the connection tells

    @abc.abstractmethod
    def on_data(self, data: memoryview, *, ended: bool) -> None:
        """Bytes of the request; after `ended` no more."""

    def cancel(self) -> None:
        """The stream is no more: nobody wants an answer."""
        if self.state is CallState.OPEN:
            self.state = CallState.CANCELLED
            self._link.forget(self._stream_id)
            callback, self._on_cancel = self._on_cancel, None
            self._stop()
            if callback is not None:
                self._notify(callback)

    def _notify(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # a bug in one handler must not keep other calls from being told
            _log.exception("callback of a cancelled gRPC call failed unexpectedly", extra={"context": {"path": self.path}})

    def abort(self, status: Status, message: str) -> None:
        """End the call over the head of its handler: `status` to the client, cancellation to the handler."""
        if self.state is CallState.OPEN:
            server = self._link.server
            if server.queued_bytes(self._stream_id):
                server.reset(self._stream_id, Http2Code.CANCEL)  # the client does not read: a status would wait for ever
            else:
                server.finish(self._stream_id, self._end_fields(status, message, ()))
            self._link.wake()
            self.cancel()

    # For the two kinds

    @abc.abstractmethod
    def _stop(self) -> None:
        """The call was cancelled: release what waits in it."""

    @abc.abstractmethod
    def _end_fields(self, status: Status, message: str, metadata: Metadata) -> Fields:
        """Returns the trailers that end the response now. Raises ValueError for metadata that cannot be sent."""

    def _may_answer(self) -> bool:
        """Returns True if an answer has any effect. Raises InvariantViolation for a second one."""
        if self.state is CallState.ANSWERED:
            invariant(False, f"the call to {self._head.path} was answered twice")
        return self.state is CallState.OPEN

    def _set_answered(self) -> None:
        self.state = CallState.ANSWERED
        self._on_cancel = None
        self._link.forget(self._stream_id)

    def _too_large_to_send(self, size: int) -> str:
        return f"Sent message larger than max ({size} vs. {self._link.send_bytes_max})"


def flatten(parts: Parts) -> tuple[Sequence[bytes | memoryview], int]:
    """`parts` as views of bytes, and how many bytes they are."""
    size = 0
    flat = True
    for part in parts:
        if type(part) is memoryview and (part.itemsize != 1 or part.ndim != 1):
            flat = False
            break
        size += len(part)
    if flat:
        return parts, size
    cast = [part.cast("B") if isinstance(part, memoryview) else part for part in parts]
    return cast, sum(map(len, cast))


async def guard(path: str, work: Awaitable[None]) -> bool:
    """Await a handler. False: it raised, which is a bug and has been logged. Cancellation passes through."""
    try:
        await work
    except Exception:
        _log.exception("handler failed unexpectedly", extra={"context": {"path": path}})
        return False
    except BaseExceptionGroup as group:
        ours, rest = group.split(Exception)
        if ours is None:
            raise
        _log.error("handler failed unexpectedly", exc_info=ours, extra={"context": {"path": path}})
        if rest is not None:
            raise rest from None
        return False
    return True
