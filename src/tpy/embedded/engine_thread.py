"""EngineThread: a running server in its own thread, and the way to it from other threads."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import outcome
import trio

from tpy.assembly import Outcome, Running, ServerOptions, Stop, run_server
from tpy.errors import Internal, TpyError, Unavailable
from tpy.reactor import Reactor, reactor_of_run
from tpy.services import Services
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.telemetry.logs import LogController
from tpy_data.gpus import GpuInventory

_T = TypeVar("_T")

RUN_CHECK_S = 0.1
"""The time between two looks at whether the run that is waited for is still there."""

_process = object()
"""Stands for this process: another object in one that was forked. `os.getpid` takes longer than a hundredth of a call."""


def _begin_process() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_begin_process)


class _Started(trio.TaskStatus[Running]):
    """Hands the running server to the thread that has started it."""

    def __init__(self, started: queue.SimpleQueue[outcome.Outcome[Running]]) -> None:
        self._queue = started

    def started(self, value: Any = None) -> None:
        """The server serves."""
        self._queue.put(outcome.Value(value))


class _Logs(LogController):
    """Not installed: logging is the program's own, so that what people must see at the start is in the exception."""

    @property
    def reaches_terminal(self) -> bool:
        return False


class OpenCall(Protocol):
    """A request under way."""

    def fail(self, error: TpyError) -> None:
        """End it with this error."""
        ...


class EngineThread:
    """One run of a server. Started when made: raises TpyError when the server cannot start. Without `logs` logging is the
    program's own."""

    def __init__(
        self,
        options: ServerOptions,
        *,
        gpus: GpuInventory,
        logs: LogController | None = None,
        custom_metrics: CustomMetrics | None = None,
    ) -> None:
        self._options = options
        self._logs = logs or _Logs(options.log)
        self._custom_metrics = custom_metrics
        self._gpus = gpus
        self._announced: list[str] = []
        self._stop = Stop()
        self._asked_to_stop = ""
        self.calls: set[OpenCall] = set()
        """Requests that have not ended. Used on the server's thread."""
        self._reactor: Reactor | None = None
        self._process = _process
        self._started: queue.SimpleQueue[outcome.Outcome[Running]] = queue.SimpleQueue()
        self._ended: outcome.Outcome[Outcome] | None = None
        self._begin()
        try:
            running = self._started.get().unwrap()
        except BaseException:  # Ctrl-C as well
            self.ask_stop("the start was cancelled")
            self._join()
            raise
        self.services: Services = running.services
        self.addresses = {name: str(address) for name, address in running.addresses.items()}
        atexit.register(self._stop_at_exit)

    def _begin(self) -> None:
        """Begin the run, in its thread."""
        self._thread = threading.Thread(target=self._run, name="tpy-server", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._done(outcome.capture(trio.run, self._serve))

    def _join(self) -> None:
        """Wait for the end of the run."""
        self._thread.join()

    def _done(self, ended: outcome.Outcome[Outcome]) -> None:
        """The run is over."""
        self._ended = ended
        for call in tuple(self.calls):  # which the server could not wait for any longer
            call.fail(Unavailable("the server has stopped"))
        self._started.put(self._why_not_started())  # read by nobody when it had started

    async def _serve(self) -> Outcome:
        self._reactor = reactor_of_run()
        if self._asked_to_stop:  # before there was a run
            self._stop.ask(self._asked_to_stop)
        return await run_server(
            self._options,
            logs=self._logs,
            announce=self._announced.append,
            stop=self._stop,
            gpus=self._gpus,
            custom_metrics=self._custom_metrics,
            task_status=_Started(self._started),
        )

    def _why_not_started(self) -> outcome.Outcome[Running]:
        if isinstance(self._ended, outcome.Error):
            known = [error for error in _leaves(self._ended.error) if isinstance(error, TpyError)]
            return outcome.Error(known[0] if known else self._ended.error)
        why = "; ".join(line.removeprefix("error: ") for line in self._announced)
        return outcome.Error(Unavailable(f"the server did not start: {why or 'it was stopped'}"))

    def enter(self, call: Callable[[], None]) -> None:
        """Call this, which must not raise, on the server's thread, soon. Raises Unavailable when the server has stopped, and in a
        process that was forked."""
        if self._reactor is None or not self.is_of_this_process:
            raise Unavailable("the server belongs to the parent process; start a new one after fork()")
        try:
            self._reactor.run_sync_soon(call)
        except trio.RunFinishedError:
            raise Unavailable("the server has stopped") from None

    def soon(self, call: Callable[[], None]) -> None:
        """Call this, which must not raise, on the server's thread, soon; never when the server has stopped. Does not wait."""
        if self._reactor is not None and self.is_of_this_process:
            with contextlib.suppress(trio.RunFinishedError):
                self._reactor.run_sync_soon(call)

    def require_other_thread(self) -> None:
        """Raises Internal on the server's own thread, which may not wait for itself."""
        # Not by its number, which the next thread gets when this one has ended.
        if threading.current_thread() is self._thread:
            raise Internal("a blocking call on the server's own thread would wait for itself")

    def run(self, function: Callable[[], _T]) -> _T:
        """Returns what `function` returns on the server's thread; waits for it."""
        self.require_other_thread()
        done: queue.SimpleQueue[outcome.Outcome[_T]] = queue.SimpleQueue()
        self.enter(lambda: done.put(outcome.capture(function)))
        return self._unwrapped(self._wait(done))

    def run_async(self, function: Callable[[], Awaitable[_T]]) -> _T:
        """Returns what the coroutine function does on the server's thread; waits for it."""
        self.require_other_thread()
        done: queue.SimpleQueue[outcome.Outcome[_T]] = queue.SimpleQueue()
        self._begin_async(function, done.put)
        return self._unwrapped(self._wait(done))

    def _wait(self, done: queue.SimpleQueue[outcome.Outcome[_T]]) -> outcome.Outcome[_T]:
        """Returns what the server's thread puts there. Raises Unavailable when the run has ended without."""
        while True:
            is_running = self._is_running()
            try:
                return done.get(timeout=RUN_CHECK_S)
            except queue.Empty:
                if not is_running:
                    raise Unavailable("the server has stopped") from None

    def _is_running(self) -> bool:
        return self._thread.is_alive()

    def _begin_async(self, function: Callable[[], Awaitable[_T]], done: Callable[[outcome.Outcome[_T]], object]) -> None:
        """Call the coroutine function in a task of the server; `done` gets what it returns or raises, on the server's thread."""
        stopping: outcome.Outcome[_T] = outcome.Error(Unavailable("the server is stopping"))

        async def call() -> None:
            result: outcome.Outcome[_T] = stopping
            try:
                result = outcome.Value(await function())
            except Exception as error:
                result = outcome.Error(error)
            finally:
                done(result)

        def begin() -> None:
            try:
                trio.lowlevel.spawn_system_task(call)
            except RuntimeError:  # no new tasks: the run is over but for what was asked before
                done(stopping)

        self.enter(begin)

    def _unwrapped(self, found: outcome.Outcome[_T]) -> _T:
        try:
            return found.unwrap()
        except TpyError:
            if self.is_stopping:  # whose models are gone
                raise Unavailable("the server is stopping") from None
            raise

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked."""
        return self._process is _process

    @property
    def is_stopping(self) -> bool:
        """The program has asked it to stop."""
        return bool(self._asked_to_stop)

    def ask_stop(self, reason: str) -> None:
        """Have the server stop; returns at once. Idempotent."""
        self._asked_to_stop = reason
        if self._reactor is not None and self.is_of_this_process:
            try:
                self._reactor.run_sync_soon(partial(self._stop.ask, reason))
            except trio.RunFinishedError:
                return

    def _stop_at_exit(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop in order, and wait for the end: requests in flight are answered. Idempotent. Raises what ended the server before,
        and Unavailable when the exit time-out ran out."""
        if not self.is_of_this_process:
            return
        self.require_other_thread()
        self.ask_stop("the program stops the server")
        self._join()
        atexit.unregister(self._stop_at_exit)  # not earlier: Ctrl-C may end the wait
        ended, self._ended = self._ended, None
        if ended is not None and ended.unwrap() is Outcome.FAILED:
            raise Unavailable("exit timeout expired: requests or models that did not end were cut off")


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
