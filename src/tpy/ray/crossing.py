"""Ways from what runs on Trio to an asyncio loop, of the same thread or another."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import trio

T = TypeVar("T")


class Crossing:
    """Made in a task of the loop that is to be reached. What crosses to a loop that has closed is dropped: nobody waits there."""

    __slots__ = ("_loop", "_thread")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def new_future(self) -> asyncio.Future[Any]:
        """A future of the loop, for `resolve`."""
        return self._loop.create_future()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call this on the loop, soon."""
        with contextlib.suppress(RuntimeError):
            if threading.get_ident() == self._thread:
                self._loop.call_soon(function, *arguments)
            else:
                self._loop.call_soon_threadsafe(function, *arguments)

    def resolve(self, future: asyncio.Future[Any], value: object) -> None:
        """Give the future its value, unless it was cancelled meanwhile."""
        if threading.get_ident() == self._thread:
            _resolve(future, value)
        else:
            self.call(_resolve, future, value)


def _resolve(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


async def on_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Returns what the coroutine function does on an asyncio loop, for a task on Trio; cancelled with it."""
    done = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def wake(future: concurrent.futures.Future[T]) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(done.set)

    future = asyncio.run_coroutine_threadsafe(function(), loop)
    future.add_done_callback(wake)
    try:
        await done.wait()
    except BaseException:
        future.cancel()
        raise
    return future.result()
