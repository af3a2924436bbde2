"""Coroutines: the event loop (asyncio) of a model whose functions are coroutines, made with the first."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ..pb_utils.failures import TritonError, describe
from ..pb_utils.request import InferenceRequest
from ..pb_utils.response import InferenceResponse, StreamedAnswer

Report = Callable[[BaseException, Sequence[str]], None]
"""Logs that these requests failed."""


class Coroutines:
    """A model that answers once has its loop in the main thread: `run` runs `execute`, and what its coroutines leave behind goes
    on during `wait`. A decoupled model has it in a separate thread: `start` leaves `execute` to it."""

    def __init__(self, *, decoupled: bool) -> None:
        self._decoupled = decoupled
        self._loop: Any = None
        self.arrived: Any = None
        """The future of a `wait`."""

    @property
    def goes_on(self) -> bool:
        """True when there is something to go on with in `wait`."""
        return self._loop is not None and not self._decoupled and not self._loop.is_closed()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end. One loop for the worker's life: what a model ties to it (connections, locks) outlives the
        batch."""
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(coroutine)

    def wait(self, ready: Callable[[], bool]) -> None:
        """Run tasks until `ready()` is true, after a `wake`, or the model has closed the loop."""
        while not self._loop.is_closed():
            arrived = self.arrived = self._loop.create_future()
            if ready():
                break
            try:
                self._loop.run_until_complete(arrived)
            except (SystemExit, KeyboardInterrupt, RuntimeError):
                # Model code does not get to end the worker by raising, nor by stopping the loop.
                continue
        self.arrived = None

    def wake(self) -> None:
        """Have `wait` look again. Any thread."""
        arrived = self.arrived
        if arrived is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(_resolve, arrived)

    def start(
        self,
        coroutine: Coroutine[Any, Any, Any],
        requests: Sequence[InferenceRequest],
        sinks: Sequence[StreamedAnswer],
        report: Report,
    ) -> None:
        """Run an async `execute` of a decoupled model beside the next batches. When it fails, its requests do."""
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="tpy-event-loop", daemon=True).start()
        ids = [request.request_id() for request in requests]
        asyncio.run_coroutine_threadsafe(_see_through(coroutine, tuple(sinks), ids, report), self._loop)

    def run_beside(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end in a thread that is not the loop's: on the loop of a decoupled model, else on a new
        one."""
        import asyncio

        if self._loop is None or not self._decoupled:
            return asyncio.run(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """End the loop; what is left on that of the main thread is cancelled, as asyncio.run does."""
        if self._loop is None:
            return
        if self._decoupled:
            self._loop.call_soon_threadsafe(self._loop.stop)
        elif not self._loop.is_closed():
            self._end_tasks()
            self._loop.close()

    def _end_tasks(self) -> None:
        import asyncio

        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())


def _resolve(arrived: Any) -> None:
    if not arrived.done():
        arrived.set_result(None)


async def _see_through(
    coroutine: Coroutine[Any, Any, Any], sinks: Sequence[StreamedAnswer], ids: Sequence[str], report: Report
) -> None:
    try:
        await coroutine
    except BaseException as error:
        report(error, ids)  # also when every request has had its answer
        text = f"Failed to process the request(s), message: {describe(error, sys._getframe())}"
        for sink in sinks:
            if not sink.ended:
                sink.send(InferenceResponse(error=TritonError(text)), final=True)
