"""Executors: where blocking work runs. Threads in production, virtual time in simulation.

A `Worker` runs jobs in the order in which they were put. Each model instance has a worker of one thread for itself; loading
has one worker of a few threads for all models. A job goes into its thread through one queue and comes back through exactly
one `Reactor.run_sync_soon`: two hand-offs, whatever it did. One that lasts may `tell` the loop something in the middle.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

import outcome
import trio

from tpy.errors import Internal, Unavailable
from tpy.reactor import Reactor, reactor_of_run
from tpy_data.exception_text import exception_text

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Job(Protocol):
    """Work for a worker, in one step or several. `begin` and `run` are called in the worker's thread, in turn, and must not
    raise; `finished` is called on the Trio thread after each `run` that says so, unless the loop has ended by then."""

    @property
    def has_more(self) -> bool:
        """In the worker's thread, after a `run`: whether there is another step."""
        ...

    def begin(self) -> None:
        """The worker turns to the next step now."""
        ...

    def run(self) -> bool:
        """Do the step; may block. Returns whether there is something to be done on the Trio thread now."""
        ...

    def finished(self) -> None:
        """Called when a job is done, if `run` was told to report it."""
        ...


class Worker(Protocol):
    """Runs jobs. Used from the Trio thread, but for `run_sync_soon`."""

    def put(self, job: Job) -> None:
        """Run `job` after all jobs put before it."""
        ...

    def run_sync_soon(self, call: Callable[[], None]) -> None:
        """Have `call` called on the Trio thread. For jobs, in the middle of their `run`."""
        ...

    def close(self) -> None:
        """No more jobs come; the worker ends when it has run what it has. Idempotent."""
        ...


class Executor(Protocol):
    """Gives out workers."""

    def open_worker(self, name: str, *, threads_max: int = 1) -> Worker:
        """A new worker; `name` is for people who look at threads. The caller closes it."""
        ...


class ThreadExecutor:
    """Workers, each with its own thread. Make it inside `trio.run`: jobs finish on that loop."""

    def __init__(self) -> None:
        self._reactor = reactor_of_run()

    def open_worker(self, name: str, *, threads_max: int = 1) -> ThreadWorker:
        """Threads are started with the first jobs, at most `threads_max`."""
        return ThreadWorker(name, self._reactor, threads_max)


class ThreadWorker:
    """Up to `threads_max` daemon threads on one queue. Daemons, because a backend that hangs must not keep the process from
    ending after the exit time-out; whoever gives up on such a call logs it."""

    def __init__(self, name: str, reactor: Reactor, threads_max: int) -> None:
        self._name = name
        self._reactor = reactor
        self._threads_max = threads_max
        self._threads = 0
        self._closed = False
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()

    def put(self, job: Job) -> None:
        """Queue the job; never blocks. Raises Unavailable when no thread can be started for it."""
        if self._threads < self._threads_max:
            name = self._name if self._threads_max == 1 else f"{self._name}-{self._threads}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._threads += 1
            except (RuntimeError, MemoryError) as error:  # what Python raises without memory for a stack
                if not self._threads:
                    raise Unavailable(f"no thread can be started: {error}") from error
        self._jobs.put(job)

    def run_sync_soon(self, call: Callable[[], None]) -> None:
        """As `Worker.run_sync_soon`: before `finished` of the job that calls this."""
        with contextlib.suppress(trio.RunFinishedError):  # the loop has ended
            self._reactor.run_sync_soon(call)

    def close(self) -> None:
        """Each thread ends when it comes to its end mark."""
        if not self._closed:
            self._closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    def _work(self) -> None:
        jobs, hand_back = self._jobs, self._reactor.run_sync_soon
        while (job := jobs.get()) is not None:
            has_more = True
            while has_more:
                job.begin()
                if job.run():
                    try:
                        hand_back(job.finished)
                    except trio.RunFinishedError:
                        return  # the loop has ended: nobody is there to take the result
                has_more = job.has_more
            # Not kept while waiting for the next one: it holds the tensors of a whole batch.
            job = None


async def call(worker: Worker, function: Callable[[], T], *, release: Callable[[T], None] | None = None) -> T:
    """Run `function` in the worker and return what it returns, or raise what it raises.

    Cancelling the caller does not stop a call that has begun: it goes on in its thread, and what it returns
    is given to `release` (in the worker) because nobody else will. A call that has not begun is never begun.
    """
    job = _Call(worker, function, release)
    worker.put(job)

    def give_up(_: Callable[[], None]) -> trio.lowlevel.Abort:
        job.abandon()
        return trio.lowlevel.Abort.SUCCEEDED

    value: T = await trio.lowlevel.wait_task_rescheduled(give_up)
    return value


async def see_through(worker: Worker, function: Callable[[], None], *, grace_s: float) -> None:
    """Run `function`, which releases something, in the worker whatever happens, and wait for it; what it raises is logged.

    When the caller is cancelled it waits for at most `grace_s` seconds more and then leaves the call behind, with a log line:
    the function still runs when its turn comes.
    """
    duty = _Duty(function)
    worker.put(duty)
    try:
        await duty.done.wait()
    except trio.Cancelled:
        with trio.move_on_after(grace_s, shield=True):
            await duty.done.wait()
        if not duty.done.is_set():
            _log.warning("gave up waiting for a call that releases resources", extra={"context": {"call": _name(function)}})
        raise


def _name(function: Callable[..., object]) -> str:
    function = getattr(function, "func", function)
    return getattr(function, "__qualname__", repr(function))


class _Duty:
    """One `see_through`."""

    __slots__ = ("_function", "done")

    has_more = False

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self.done = trio.Event()

    def begin(self) -> None:
        pass

    def run(self) -> bool:
        try:
            self._function()
        except BaseException:  # also sys.exit() in model code
            _log.exception("a call that releases resources failed", extra={"context": {"call": _name(self._function)}})
        return True

    def finished(self) -> None:
        self.done.set()


class _Call(Generic[T]):
    """One `call`. `_abandoned` is written on the Trio thread and read in the worker: a late read only means that `finished`
    sees to the release."""

    __slots__ = ("_abandoned", "_begun", "_function", "_release", "_result", "_task", "_worker")

    has_more = False

    def __init__(self, worker: Worker, function: Callable[[], T], release: Callable[[T], None] | None) -> None:
        self._worker = worker
        self._function = function
        self._release = release
        self._task = trio.lowlevel.current_task()
        self._result: outcome.Value[T] | outcome.Error | None = None
        self._abandoned = False
        self._begun = False

    def begin(self) -> None:
        self._begun = not self._abandoned

    def run(self) -> bool:
        if not self._begun:
            return True
        try:
            self._result = outcome.Value(self._function())
        except Exception as error:
            self._result = outcome.Error(error)
        except BaseException as error:  # sys.exit() in model code must end neither this thread nor the server
            self._result = outcome.Error(Internal(exception_text(error)))
        return True

    def finished(self) -> None:
        if not self._abandoned:
            if self._result is not None:
                trio.lowlevel.reschedule(self._task, self._result)
        elif isinstance(self._result, outcome.Value) and self._release is not None:
            self._worker.put(_Duty(functools.partial(self._release, self._result.value)))

    def abandon(self) -> None:
        self._abandoned = True
        if self._begun:
            # Whoever gave up says it, in words of models.
            _log.debug("call abandoned, its thread still runs", extra={"context": {"call": _name(self._function)}})
