"""ResponseStream: the responses of one request of a decoupled model, on their way from its model's threads to the Trio thread.

    send (any thread)  -->  HandOff, one wake-up of the loop for many responses  -->  StreamOwner.take (Trio thread)

What was sent and not taken is bounded per request: `send` waits, in the model's thread, until the caller takes some, or the
request is over. Nothing here decides what a response means; that is the owner's part.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import trio

from tpy.backend import ExecutionResult, flaw_of
from tpy.clock import Clock
from tpy.deliveries import Deliveries
from tpy.errors import Internal, InvariantViolation
from tpy.limits import DECOUPLED_RESPONSE_BYTES_WAITING_MAX, DECOUPLED_RESPONSES_WAITING_MAX
from tpy.messages import Residency, held_bytes
from tpy.reactor import reactor_of_run


class Sent(NamedTuple):
    """One response as the model sent it, at `sent_ns` on the server's Clock. `size` is that of its tensors in bytes."""

    result: ExecutionResult | None
    final: bool
    size: int
    sent_ns: int


class StreamOwner(Protocol):
    """Takes responses, on the Trio thread."""

    def taking(self, *, begin: bool) -> None:
        """Responses are being taken from now on, or all that had come are taken."""
        ...

    def take(self, stream: ResponseStream, sent: Sent) -> None:
        """Deliver it, or keep it in `stream.held` while the stream is paused. Must not raise."""
        ...

    def resumed(self, stream: ResponseStream) -> None:
        """The stream is not paused any more."""
        ...


class HandOff:
    """The way to the Trio thread for all responses of a model version. Make it on the Trio thread."""

    __slots__ = ("_awake", "_deliveries", "_owner", "_queue", "_reactor", "clock")

    def __init__(self, owner: StreamOwner, clock: Clock, deliveries: Deliveries) -> None:
        self.clock = clock
        self._deliveries = deliveries
        self._owner = owner
        self._reactor = reactor_of_run()
        self._queue: deque[tuple[ResponseStream, Sent]] = deque()
        self._awake = False

    def put(self, stream: ResponseStream, sent: Sent) -> None:
        """Any thread; never blocks."""
        self._queue.append((stream, sent))
        # Looked at after the append, cleared before the queue is read: a response is never left behind, at worst `flush`
        # runs once for nothing.
        if not self._awake:
            self._awake = True
            with contextlib.suppress(trio.RunFinishedError):  # then the loop has ended, and nobody is there to take it
                self._reactor.run_sync_soon(self.flush)

    def flush(self) -> None:
        """Trio thread: give the owner what has come so far. What comes meanwhile waits for the next turn of the loop, because a
        fast model must not keep the loop to itself."""
        self._awake = False
        queue, take = self._queue, self._owner.take
        if not queue:
            return
        taken: dict[ResponseStream, list[Sent]] = {}
        with self._deliveries:
            self._owner.taking(begin=True)
            for _ in range(len(queue)):
                if not queue:  # a sink had a batch reported, before which all that was sent is taken
                    break
                stream, sent = queue.popleft()
                if stream.over:
                    continue
                held = len(stream.held)
                take(stream, sent)
                if len(stream.held) == held:
                    taken.setdefault(stream, []).append(sent)
            self._owner.taking(begin=False)
        for stream, items in taken.items():
            stream.free(items)


class ResponseStream:
    """A `tpy.backend.ResponseSender`, and what the Trio thread knows of the request's responses.

    Of the Trio thread: `index` is the next response's, `last_ns` when the one before was sent (0: none yet), `held` are the
    responses that wait while `paused`, `failed` says that one was an error, `over` that the request has ended, at `ended_ns`.
    `began_ns` is when its execution began (0: not yet).
    """

    __slots__ = (
        "_bytes",
        "_ended",
        "_final_sent",
        "_hand_off",
        "_open",
        "_owner",
        "_residency",
        "_room",
        "_taken",
        "_waiting",
        "began_ns",
        "ended_ns",
        "failed",
        "held",
        "index",
        "last_ns",
        "over",
        "paused",
        "ticket",
    )

    def __init__(self, ticket: object, hand_off: HandOff, owner: StreamOwner, residency: Residency | None = None) -> None:
        self.ticket: object = ticket
        self._residency = residency
        self.index = 0
        self.last_ns = 0
        self.held: deque[Sent] = deque()
        self.paused = False
        self.failed = False
        self.over = False
        self.began_ns = 0
        self.ended_ns = 0
        self._hand_off = hand_off
        self._owner = owner
        # Re-entrant: the garbage collector may run a model's clean-up, which sends, in the middle of any of the blocks below.
        self._room = threading.Condition(threading.RLock())
        self._waiting = 0
        self._bytes = 0
        self._final_sent = False
        self._open = True
        self._taken: Callable[[int], None] | None = None
        self._ended: Callable[[], None] | None = None

    def send(self, result: ExecutionResult | None, *, final: bool, wait: bool = True) -> None:
        """As `tpy.backend.ResponseSender.send`."""
        if result is None and not final:
            raise ValueError("a response without data must be the final one")
        size = 0
        if result is not None:
            flaw = flaw_of(result, self._residency)
            if flaw is not None:
                result = ExecutionResult(error=Internal(f"the model sent {flaw}"))
            else:
                size = held_bytes(result.outputs, DECOUPLED_RESPONSE_BYTES_WAITING_MAX)
        with self._room:
            if wait and self._is_full():
                self._wait_room()
            if self._final_sent:
                raise ValueError("the final response was sent already")
            self._final_sent = final
            if self._open:
                self._waiting += 1
                self._bytes += size
                # Inside, so that responses of several threads arrive in the order in which they were let through.
                self._hand_off.put(self, Sent(result, final, size, self._hand_off.clock.now_ns()))

    def is_full(self) -> bool:
        """As `tpy.backend.ResponseSender.is_full`."""
        return self._is_full()

    def watch(self, taken: Callable[[int], None], ended: Callable[[], None]) -> None:
        """As `tpy.backend.ResponseSender.watch`."""
        with self._room:
            self._taken, self._ended = taken, ended
            gone = not self._open
        if gone:
            ended()

    def pause(self) -> None:
        """Trio thread: as `RequestHandle.pause`."""
        self.paused = True

    def resume(self) -> None:
        """Trio thread: as `RequestHandle.resume`."""
        if self.paused:
            self.paused = False
            if not self.over:
                self._owner.resumed(self)

    def free(self, taken: list[Sent]) -> None:
        """Trio thread: these were delivered; there is room for as many more."""
        with self._room:
            self._waiting -= len(taken)
            self._bytes -= sum([sent.size for sent in taken])
            self._room.notify_all()
        if self._taken is not None:
            self._taken(len(taken))

    def end(self, now_ns: int, *, by_model: bool) -> None:
        """Trio thread: the request is over. A sender that waits goes on; what is sent from now on is dropped."""
        self.over = True
        self.ticket = None  # the model may keep us for long; and each would keep the other until the garbage collector comes by
        self.ended_ns = now_ns
        self.held.clear()
        with self._room:
            self._open = False
            self._room.notify_all()
        if not by_model and self._ended is not None:
            self._ended()
        self._taken = self._ended = None

    def _is_full(self) -> bool:
        return self._open and (
            self._waiting >= DECOUPLED_RESPONSES_WAITING_MAX
            or (self._waiting > 0 and self._bytes >= DECOUPLED_RESPONSE_BYTES_WAITING_MAX)
        )

    def _wait_room(self) -> None:
        if trio.lowlevel.in_trio_run():
            raise InvariantViolation("a model that runs on the loop itself sent more responses than may wait")
        while self._is_full() and not self._final_sent:
            self._room.wait()
