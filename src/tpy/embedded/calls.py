"""Calls: requests that cross from a thread of the program to the server's thread, and their responses back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

import msgspec
import trio

from tpy.embedded.engine_thread import EngineThread
from tpy.errors import InvalidArgument, TpyError, Unavailable
from tpy.limits import EMBEDDED_RESPONSES_MAX
from tpy.messages import InferenceRequest, InferenceResponse
from tpy.services import RequestHandle
from tpy.unexpected import unexpected_error

_log = logging.getLogger(__name__)

Put = Callable[[InferenceResponse], None]
"""Takes a response on the server's thread, for a thread of the program; neither blocks nor raises."""


class EmbeddedCall:
    """A request under way, once it is begun. Implements ResponseSink. `paced`: a program that takes responses of a stream slowly
    slows the model down. When EMBEDDED_RESPONSES_MAX wait for it the request is paused, until half of them are taken. `is_over`
    says that the program has taken the last response."""

    __slots__ = ("_cancelled", "_engine", "_handle", "_is_paced", "_put", "_request", "_taken", "_waiting", "is_over")

    def __init__(self, engine: EngineThread, request: InferenceRequest, put: Put, *, paced: bool = True) -> None:
        self._engine = engine
        self._request = request
        self._put = put
        self._is_paced = paced
        self._handle: RequestHandle | None = None
        self._waiting = 0
        self._taken = 0
        self._cancelled = False
        self.is_over = False

    def begin(self) -> None:
        """Begin the request; one that is refused gets its error as a response."""
        self._engine.enter(self._begin)

    def begin_or_raise(self) -> None:
        """Begin the request. Raises what it is refused with."""
        self._engine.run(self._submit)

    def _begin(self) -> None:
        try:
            self._submit()
        except TpyError as error:
            self.fail(error)

    def _submit(self) -> None:
        if self._cancelled:
            return
        request = self._request
        self._engine.calls.add(self)
        try:
            services = self._engine.services
            model = services.inference.resolve(request.model_name, request.model_version)
            record = services.observers.open("embedded", model=request.model_name, received_ns=request.received_ns)
            if record is not None:
                request = msgspec.structs.replace(request, record=record)
            handle = model.submit(request, self)
            if self in self._engine.calls:  # else it is answered already
                self._handle = handle
        except TpyError:
            self._engine.calls.discard(self)
            if self._engine.is_stopping:  # whose models are gone
                raise Unavailable("the server is stopping") from None
            raise
        except Exception as error:  # a bug: the server goes on
            text = f"unexpected error: {type(error).__name__}: {error}"
            self.fail(unexpected_error("a request of the program failed unexpectedly", text=text))
        else:
            if self._waiting:
                self._slow_down()

    def fail(self, error: TpyError) -> None:
        """End the request with this error. Called on the server's thread, or when that has ended."""
        self._engine.calls.discard(self)
        self._put(InferenceResponse(model_name=self._request.model_name, model_version=0, error=error))

    def deliver(self, response: InferenceResponse) -> None:
        if response.final:
            self._handle = None
            self._engine.calls.discard(self)
        elif self._is_paced:
            self._waiting += 1
            self._slow_down()
        self._put(response)

    def _slow_down(self) -> None:
        if self._handle is not None and self._waiting >= EMBEDDED_RESPONSES_MAX:
            self._handle.pause()

    def take(self, response: InferenceResponse) -> None:
        """The program takes this response: called on its thread."""
        self.is_over = response.final
        if self._is_paced and not response.final:
            self._taken += 1
            if self._taken >= EMBEDDED_RESPONSES_MAX // 2:
                taken, self._taken = self._taken, 0
                self._engine.enter(lambda: self._speed_up(taken))

    def opened(self, response: InferenceResponse) -> InferenceResponse | None:
        """The response, which the program takes. None for one that only says that there are no more. Raises the error of a
        request that failed."""
        self.take(response)
        if response.error is not None:
            raise response.error.with_traceback(None)
        return None if response.final and not response.outputs else response

    def _speed_up(self, taken: int) -> None:
        self._waiting -= taken
        if self._handle is not None:
            self._handle.resume()

    def cancel(self, answer: TpyError | None = None) -> None:
        """Forget the request: nothing more is put, but `answer` if it has not ended. Without effect when it has, or the server
        has."""
        if not self.is_over:
            with contextlib.suppress(TpyError):
                self._engine.enter(lambda: self._cancel(answer))

    def drop(self) -> None:
        """Forget the request, soon: nobody waits for it any more. Any thread, and also where one may not wait."""
        if not self.is_over:
            self._engine.soon(lambda: self._cancel(None))

    def _cancel(self, answer: TpyError | None) -> None:
        was_open = self in self._engine.calls
        self._cancelled = True
        self._engine.calls.discard(self)
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if was_open and answer is not None:
            self.fail(answer)


class AsyncInbox:
    """The responses of one request for a task that waits for them, on asyncio or Trio. Raises InvalidArgument outside of these,
    and in a loop that it was not made in."""

    def __init__(self) -> None:
        self._responses: deque[InferenceResponse] = deque()
        self._wake = _waker()

    def put(self, response: InferenceResponse) -> None:
        """Called on the server's thread."""
        self._responses.append(response)
        self._wake.call()

    async def get(self) -> InferenceResponse:
        """The next response."""
        while not self._responses:
            await self._wake.wait()
        return self._responses.popleft()


class _AsyncioWaker:
    """Wakes a task of an asyncio loop from another thread."""

    def __init__(self) -> None:
        self._loop = _running_loop()
        self._event = asyncio.Event()

    def call(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    async def wait(self) -> None:
        if trio.lowlevel.in_trio_task() or _running_loop() is not self._loop:
            raise InvalidArgument(_OTHER_LOOP)
        await self._event.wait()
        self._event.clear()


class _TrioWaker:
    """Wakes a task of a Trio run from another thread."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._event = trio.Event()

    def call(self) -> None:
        try:
            self._token.run_sync_soon(self._set)
        except trio.RunFinishedError:
            return

    def _set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        if not trio.lowlevel.in_trio_task() or trio.lowlevel.current_trio_token() is not self._token:
            raise InvalidArgument(_OTHER_LOOP)
        await self._event.wait()
        self._event = trio.Event()


_OTHER_LOOP = "the request was started in another event loop; take its responses there"


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidArgument("async inference needs a running asyncio or Trio loop") from None


def _waker() -> _AsyncioWaker | _TrioWaker:
    return _TrioWaker() if trio.lowlevel.in_trio_task() else _AsyncioWaker()
