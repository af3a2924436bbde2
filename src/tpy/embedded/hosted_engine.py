"""HostedEngine: a running server on the asyncio loop of the program, and the way to it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, TypeVar

import outcome
import sniffio
import trio

from tpy.assembly import Outcome, ServerOptions
from tpy.cli.serve import visible_gpus
from tpy.embedded.engine_thread import RUN_CHECK_S, EngineThread
from tpy.errors import Unavailable
from tpy.reactor import reactor_of_run

_T = TypeVar("_T")


class HostedEngine(EngineThread):
    """A server whose Trio is a guest of an asyncio loop, which waits for its reactor, too. So a request that a task of that loop
    has read is decoded, queued and answered without a change of threads
    ([decision](../../../docs/adr/0061-the-engine-of-a-replica-is-a-guest.md)).

    One fits on a loop. It is made, and stopped, in another thread than the loop's."""

    def __init__(self, options: ServerOptions, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_over = threading.Event()
        super().__init__(options, gpus=visible_gpus())

    def _begin(self) -> None:
        self._loop.call_soon_threadsafe(self._begin_on_loop)

    def _begin_on_loop(self) -> None:
        self._thread = threading.current_thread()
        try:
            trio.lowlevel.start_guest_run(
                self._serve_hosted,
                run_sync_soon_threadsafe=self._run_threadsafe,
                run_sync_soon_not_threadsafe=self._loop.call_soon,
                done_callback=self._done,
                host_uses_signal_set_wakeup_fd=True,
            )
        except Exception as error:  # Trio runs in this thread already
            self._done(outcome.Error(error))

    def _run_threadsafe(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    async def _serve_hosted(self) -> Outcome:
        reactor_of_run().host = self._loop
        return await self._serve()

    def _done(self, ended: outcome.Outcome[Any]) -> None:
        super()._done(ended)
        self._is_over.set()

    def _join(self) -> None:
        while self._is_running():
            self._is_over.wait(RUN_CHECK_S)

    def _is_running(self) -> bool:
        return not self._is_over.is_set() and self._loop.is_running()  # which the process may have left

    def enter(self, call: Callable[[], None]) -> None:
        """As that of any engine; on the loop itself at once, in no context: what a task of the loop has in its own, as Serve has
        the request whose end cancels others, is not that of what the server does next."""
        if threading.current_thread() is not self._thread or not self.is_of_this_process:
            super().enter(call)
        elif self._is_over.is_set():
            raise Unavailable("the server has stopped")
        else:
            before = sniffio.thread_local.name
            sniffio.thread_local.name = "trio"  # else AnyIO would make events of asyncio, for which no task of Trio can wait
            try:
                Context().run(call)
            finally:
                sniffio.thread_local.name = before

    def run(self, function: Callable[[], _T]) -> _T:
        """As that of any engine; on the loop itself there is nothing to wait for."""
        if threading.current_thread() is not self._thread:
            return super().run(function)
        done: list[outcome.Outcome[_T]] = []
        self.enter(lambda: done.append(outcome.capture(function)))
        return self._unwrapped(done[0])

    async def ask(self, function: Callable[[], Awaitable[_T]]) -> _T:
        """Returns what the coroutine function does in a task of the server, for a task of the loop. It goes on when that is
        cancelled."""
        answer: asyncio.Future[outcome.Outcome[_T]] = self._loop.create_future()

        def done(found: outcome.Outcome[_T]) -> None:
            if not answer.done():
                answer.set_result(found)

        self._begin_async(function, done)
        return self._unwrapped(await answer)

    def _stop_at_exit(self) -> None:
        if threading.current_thread() is not self._thread:  # else the process has left the loop, and nothing can be waited for
            super()._stop_at_exit()
