"""The handler's side of a call: two Protocols, and the table of the handlers by path.

Everything here happens on the Trio thread. A call ends in one of two ways: the handler answers it (`reply`, `fail`, `finish`),
or it is cancelled, because the client reset it or went away, its deadline passed, or the server's drain deadline passed.
Answering a cancelled call does nothing, so that a handler need not look.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from grpclib.const import Status

Metadata = Sequence[tuple[str, str | bytes]]
"""Pairs in the order of the wire, keys lower case, with repetitions. Values of keys that end in `-bin` are bytes, decoded."""

Parts = Sequence[bytes | memoryview]
"""One message in pieces that are sent one behind the other, not copied: they must not change until they have been sent."""


DEADLINE_TEXT: Final = "Deadline Exceeded"
"""The message of DEADLINE_EXCEEDED, as gRPC's own servers and clients write it."""


class CallContext(Protocol):
    """The context of a call, known when it begins."""

    @property
    def path(self) -> str:
        """`/<package>.<service>/<method>`."""
        ...

    @property
    def metadata(self) -> Metadata:
        """The metadata of the client, less what belongs to HTTP and to gRPC itself (`grpc-timeout`, `te`, ...); with
        `user-agent`."""
        ...

    @property
    def load_format(self) -> str:
        """The form in which the client wants the load of the server in the trailers, "" where it did not ask."""
        ...

    @property
    def deadline_ns(self) -> int | None:
        """The client's deadline, on the monotonic time of the server's Clock. The transport answers DEADLINE_EXCEEDED then
        and cancels the call: nobody else need watch it."""
        ...

    @property
    def peer(self) -> str:
        """The peer: `127.0.0.1:5000`, `[::1]:5000`, "" for that of a Unix socket, as over HTTP."""
        ...

    def certificate(self) -> Any:
        """The certificate of the client as `ssl` tells it, empty or None without one."""
        ...

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the call is cancelled: at most once, never after the answer, at once if it already is. There is
        one callback: a later one replaces an earlier one. It must neither block nor raise."""
        ...

    def fail(self, status: Status, message: str, trailing_metadata: Metadata = ()) -> None:
        """End the call with a status other than OK. Never blocks. What a stream has queued before is still sent first."""
        ...


class UnaryCall(CallContext, Protocol):
    """A call with one request message, which has arrived, and one response message. Exactly one of `reply` and `fail` must be
    called, at any time after the handler got the call; a second answer raises InvariantViolation."""

    def reply(self, parts: Parts, trailing_metadata: Metadata = ()) -> None:
        """Answer with one message and OK. Never blocks. A message beyond `max_send_bytes` becomes RESOURCE_EXHAUSTED."""
        ...


class StreamCall(CallContext, Protocol):
    """A call whose messages come and go one by one. Its handler runs in its own task, which is cancelled with the call.
    One task receives and one (possibly another) sends at a time; `send_nowait`, `finish` and `fail` may be called from anywhere
    on the Trio thread. `finish` or `fail` ends the call; a second end raises InvariantViolation."""

    async def receive_message(self) -> memoryview | None:
        """The next request message; None when the client has said that there are no more. The client may send further ahead
        only as far as its flow-control window goes, which moves with the messages taken here."""
        ...

    async def send_message(self, parts: Parts) -> None:
        """Queue one response message. Waits while what is queued of this call, but not taken by the client, is more than
        GRPC_STREAM_SEND_BYTES_MAX. A message beyond `max_send_bytes` ends the call with RESOURCE_EXHAUSTED."""
        ...

    def send_nowait(self, parts: Parts) -> bool:
        """Queue one response message if `send_message` would not wait. False: nothing was taken; `await send_message`."""
        ...

    def finish(self, trailing_metadata: Metadata = ()) -> None:
        """End the call with OK behind everything queued. Never blocks. Done for the handler when it returns without it."""
        ...


@dataclass(frozen=True, slots=True)
class UnaryHandler:
    """`handle(call, message)` is called on the loop, synchronously, when the whole request has arrived: there is no task for a
    unary call, so it must not block; it may answer before it returns or later. `message` stays valid as long as it is held.
    An exception is a bug: logged, and answered INTERNAL. `in_task`: the work is done in a task that `handle` starts, so that a
    connection begins few such calls in one turn of the loop."""

    handle: Callable[[UnaryCall, memoryview], None]
    in_task: bool = False


@dataclass(frozen=True, slots=True)
class StreamHandler:
    """`await handle(call)` runs in a task of the connection's nursery from the moment the call's headers have arrived. Returning
    ends the call with OK. An exception is a bug: logged, and answered INTERNAL."""

    handle: Callable[[StreamCall], Awaitable[None]]


Handlers = Mapping[str, UnaryHandler | StreamHandler]
"""The handlers by path. A path that is not in it is answered UNIMPLEMENTED."""
