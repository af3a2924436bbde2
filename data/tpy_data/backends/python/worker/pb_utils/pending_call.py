"""PendingCall: a call to another model, until its last response; ResponseIterator: what models see of one with many."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .response import InferenceResponse

if TYPE_CHECKING:
    import asyncio

Arrived = tuple[InferenceResponse, bool]
"""A response, and whether it is the last one."""


class PendingCall:
    """Responses come in by `put`, in any thread, and are taken in order. `wait` blocks until the call is `ready`; `taken` is
    called with each response that was taken, but the last; `give_up` is called, perhaps in the middle of garbage collection,
    when nobody wants the rest."""

    __slots__ = ("_arrived", "_give_up", "_lock", "_taken", "_wait", "_waiting", "ended")

    def __init__(
        self,
        wait: Callable[[PendingCall], None],
        taken: Callable[[], None] | None = None,
        give_up: Callable[[], None] | None = None,
    ) -> None:
        self.ended = False
        """The last response has arrived, or nobody wants it."""
        self._arrived: deque[Arrived] = deque()
        self._wait = wait
        self._taken = taken
        self._give_up = give_up
        self._lock = threading.RLock()  # garbage collection may cancel in the middle of anything
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    @property
    def ready(self) -> bool:
        """True if a response can be taken at once."""
        return bool(self._arrived)

    def put(self, response: InferenceResponse, final: bool) -> None:
        """A response has arrived. Nothing follows the last one."""
        with self._lock:
            if self.ended:
                return
            self.ended = final
            self._arrived.append((response, final))
            waiting = list(self._waiting)
            self._waiting.clear()
        for loop, future in waiting:
            _wake(loop, future)

    def take(self) -> Arrived:
        """The next response; blocks until it is there."""
        while True:
            try:
                arrived = self._arrived.popleft()
            except IndexError:
                self._wait(self)
                continue
            if self._taken is not None and not arrived[1]:
                self._taken()
            return arrived

    async def take_async(self) -> Arrived:
        """The same on an event loop (asyncio)."""
        await self.wait_ready()
        return self.take()

    async def wait_ready(self) -> None:
        """Until a response can be taken, on an event loop (asyncio)."""
        import asyncio

        loop = asyncio.get_running_loop()
        while not self._arrived:
            future = loop.create_future()
            with self._lock:
                if self._arrived:
                    break
                self._waiting.append((loop, future))
            await future

    def cancel(self, last: InferenceResponse | None = None) -> None:
        """Notify the called model that nobody waits. `last` is what is taken after what has arrived."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
            if last is not None:
                self._arrived.append((last, True))
            waiting = list(self._waiting)
            self._waiting.clear()
        for loop, future in waiting:
            _wake(loop, future)
        if self._give_up is not None:
            self._give_up()


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    def wake() -> None:
        if not future.done():
            future.set_result(None)

    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits on it
        loop.call_soon_threadsafe(wake)


class ResponseIterator:
    """The responses of `exec(decoupled=True)`, with `for`, `next()` or `async for`. When they are through, iterating again begins
    anew with the first. Dropping it cancels the call."""

    __slots__ = ("_index", "_pending", "_seen", "_taking")

    def __init__(self, pending: PendingCall) -> None:
        self._pending: PendingCall | None = pending
        self._seen: list[InferenceResponse] = []
        self._index = 0
        self._taking = threading.Lock()

    def __iter__(self) -> ResponseIterator:
        self._begin_anew()
        return self

    def __next__(self) -> InferenceResponse:
        with self._taking:
            if self._pending is None:
                return self._again(StopIteration)
            return self._keep(self._pending.take())

    def __aiter__(self) -> ResponseIterator:
        self._begin_anew()
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._pending is None:
            return self._again(StopAsyncIteration)
        return self._keep(await self._pending.take_async())

    def cancel(self) -> None:
        """Notify the called model that nobody waits any more. What has arrived can still be taken; an error with the code
        CANCELLED comes after it."""
        from .failures import TritonError

        if self._pending is not None:
            self._pending.cancel(InferenceResponse(error=TritonError("the request was cancelled", TritonError.CANCELLED)))

    def __del__(self) -> None:
        if self._pending is not None:
            self._pending.cancel()

    def _begin_anew(self) -> None:
        if self._pending is None and self._index >= len(self._seen):
            self._index = 0

    def _keep(self, arrived: Arrived) -> InferenceResponse:
        response, final = arrived
        self._seen.append(response)
        if final:
            self._pending = None
            self._index = len(self._seen)
        return response

    def _again(self, end: type[Exception]) -> InferenceResponse:
        if self._index >= len(self._seen):
            raise end("Iteration is done for the responses.")
        self._index += 1
        return self._seen[self._index - 1]


def as_iterator_future(pending: PendingCall) -> Any:
    """An asyncio future with an iterator over the responses of a call, done when the first one is there, as Triton's: a plain
    `for` waits for none but the others. Cancelling it cancels the call."""
    import asyncio

    async def responses() -> ResponseIterator:
        iterator = ResponseIterator(pending)
        await pending.wait_ready()
        return iterator

    return asyncio.ensure_future(responses())


def as_future(pending: PendingCall) -> Any:
    """An asyncio future with the one response of a call; cancelling it cancels the call."""
    import asyncio

    async def response() -> InferenceResponse:
        try:
            return (await pending.take_async())[0]
        except asyncio.CancelledError:
            pending.cancel()
            raise

    return asyncio.ensure_future(response())
