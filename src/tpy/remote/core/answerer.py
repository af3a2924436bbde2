"""Answerer: the engine's side of the table of requests of one frontend process, and how much may be sent for each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tpy.limits.remote import REMOTE_REQUESTS_MAX, REMOTE_WINDOW_BYTES, REMOTE_WINDOW_RESPONSES
from tpy.messages import InferenceResponse, held_bytes
from tpy.remote.core.framing import ProtocolError
from tpy.services import RequestHandle

Send = Callable[[int, InferenceResponse], None]
"""Sends a response to a request. Raises nothing."""


class RemoteRequest:
    """A request that somebody in the frontend process waits for: implements ResponseSink."""

    __slots__ = ("_answerer", "_handle", "_paused", "_sent", "ended", "number", "untaken_bytes")

    def __init__(self, answerer: Answerer, number: int) -> None:
        self.number = number
        self.ended = False
        self._answerer = answerer
        self._handle: RequestHandle | None = None
        self._sent: deque[int] = deque()
        """The sizes of responses that the other side has not taken."""
        self.untaken_bytes = 0
        self._paused = False

    def submitted(self, handle: RequestHandle) -> None:
        """The engine has taken the request."""
        if not self.ended:
            self._handle = handle
            self._keep_window()

    def deliver(self, response: InferenceResponse) -> None:
        """See ResponseSink."""
        if self.ended:
            return
        if response.final:
            self._end()
        else:
            size = held_bytes(response.outputs, REMOTE_WINDOW_BYTES)
            self._sent.append(size)
            self.untaken_bytes += size
        self._answerer.send(self.number, response)
        if not response.final:
            self._keep_window()

    def taken(self, count: int) -> None:
        """The oldest `count` have been taken. Raises ProtocolError when fewer were sent."""
        if not 0 < count <= len(self._sent):
            raise ProtocolError(f"{count} responses of request {self.number} taken, {len(self._sent)} were sent")
        for _ in range(count):
            self.untaken_bytes -= self._sent.popleft()
        if self._paused and not self._is_full and self._handle is not None:
            self._paused = False
            self._handle.resume()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        handle = self._handle
        self._end()
        if handle is not None:
            handle.cancel()

    @property
    def untaken(self) -> int:
        """The number of responses that were sent and that the other side has not taken."""
        return len(self._sent)

    @property
    def _is_full(self) -> bool:
        return len(self._sent) >= REMOTE_WINDOW_RESPONSES or self.untaken_bytes >= REMOTE_WINDOW_BYTES

    def _keep_window(self) -> None:
        if self._is_full and not self._paused and self._handle is not None:
            self._paused = True
            self._handle.pause()

    def _end(self) -> None:
        self.ended = True
        self._handle = None
        self._answerer.forget(self)


class Answerer:
    """All requests of a frontend process that have not ended."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self._requests: dict[int, RemoteRequest] = {}
        self._newest = 0

    @property
    def open(self) -> int:
        """The number of requests that have not ended."""
        return len(self._requests)

    def requests(self) -> list[RemoteRequest]:
        """The requests that have not ended."""
        return list(self._requests.values())

    def begin(self, number: int) -> RemoteRequest:
        """A request that has arrived. Raises ProtocolError for a number that was used, and when there are too many."""
        if number <= self._newest:
            raise ProtocolError(f"a new request with the number {number}, the newest is {self._newest}")
        if len(self._requests) >= REMOTE_REQUESTS_MAX:
            raise ProtocolError(f"more than {REMOTE_REQUESTS_MAX} requests that are not answered")
        self._newest = number
        request = self._requests[number] = RemoteRequest(self, number)
        return request

    def find(self, number: int) -> RemoteRequest | None:
        """The request of that number; None when it has ended. Raises ProtocolError for one that never was."""
        if not 0 < number <= self._newest:
            raise ProtocolError(f"about request {number}, the newest is {self._newest}")
        return self._requests.get(number)

    def forget(self, request: RemoteRequest) -> None:
        """It has ended."""
        self._requests.pop(request.number, None)

    def cancel_all(self) -> None:
        """The frontend process is gone."""
        for request in self.requests():
            request.cancel()
