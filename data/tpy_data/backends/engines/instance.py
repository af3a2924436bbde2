"""EngineInstance: the thread in which an engine steps, as an instance of the server's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure
from tpy.backend.engine import Engine, EngineLimits
from tpy.backend.instances import StepHost
from tpy.errors import Internal, TpyError, Unavailable
from tpy.limits import INSTANCE_CLOSE_S_MAX
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_data.backends.engines.loop import NoHost, StepLoop
from tpy_data.backends.engines.metrics import EngineMetrics
from tpy_data.exception_text import exception_text

Log = Callable[[str, str], None]

_LOOKS: Final = 4
"""Times that a step is looked at before it takes too long."""

_HELD_STEP_FACTOR: Final = 1.5
"""Of the limit of a step, after which the process is ended: by then it has not been noticed, because the step holds the GIL."""


GIVE_WAY_NS_MAX: Final = 100 * NS_PER_MS
"""The longest that an engine waits between two steps while the process has other work to do. With all that a full engine takes
there are a few milliseconds of it."""

_PAUSE_S: Final = 0.00005
"""Between two looks: others run meanwhile."""


class EngineInstance:
    """A `ModelInstance`, `WatchedInstance`, `LimitedInstance` and `HostedSteps`. `execute` hands requests over and returns; they
    are answered by their senders. When the engine raises from a step, or does not return from one in `step_limit_s`, its requests
    fail and `end_fileno` becomes readable: the server makes another instance."""

    def __init__(
        self,
        make: Callable[[], Engine],
        *,
        name: str,
        metrics: EngineMetrics,
        step_limit_s: float,
        log: Log,
        embeds: bool = False,
        takes_images: bool = False,
    ) -> None:
        """Makes the engine, in the thread that it will run in; `embeds`: it gives embeddings; `takes_images`: it takes them with
        a prompt. Raises what that raises."""
        self.end_reason = f"the engine of instance '{name}' has ended"
        self._name = name
        self._make = make
        self._metrics = metrics
        self._step_limit_s = step_limit_s
        self._log = log
        self._embeds = embeds
        self._takes_images = takes_images
        self._loop: StepLoop | None = None
        self._refusals: list[BaseException] = []
        self._limits = EngineLimits(sequences=1)
        self._made = threading.Event()
        self._wake = threading.Condition()
        self._host: StepHost = NoHost()
        self._stopping = False
        self._ended = threading.Event()
        self._readable, self._writable = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"engine of {name}", daemon=True)
        self._thread.start()
        self._made.wait()
        if self._refusals:
            self._thread.join()
            self._close_pipe()
            raise self._refusals[0]
        self._watch = threading.Thread(target=self._watch_steps, name=f"watch of {name}", daemon=True)
        self._watch.start()

    @property
    def engine_limits(self) -> EngineLimits:
        """As `LimitedInstance.engine_limits`."""
        return self._limits

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """Hand the requests to the engine. Raises InstanceFailure when it has ended."""
        loop = self._loop
        if loop is None or loop.failure is not None:
            raise InstanceFailure(self.end_reason, begun=False)
        loop.give(batch.requests)
        with self._wake:
            self._wake.notify()
        return ()

    def step_in(self, host: StepHost) -> None:
        """As `HostedSteps.step_in`."""
        self._host = host

    def end_fileno(self) -> int:
        """As `WatchedInstance.end_fileno`."""
        return self._readable

    def close(self) -> None:
        """Requests that have not ended fail. Waits for the step that is going on, but not for ever."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(INSTANCE_CLOSE_S_MAX / 2)
        if self._thread.is_alive():
            self._log("error", f"{self._name}: the engine does not return from a step and is abandoned")
        self._ended.set()
        self._watch.join()
        self._close_pipe()

    # The engine's thread

    def _run(self) -> None:
        try:
            engine = self._make()
            try:
                self._limits = engine.limits()
            except BaseException:
                engine.close()
                raise
        except BaseException as error:
            self._refusals.append(error)
            self._made.set()
            return
        try:
            loop = self._loop = StepLoop(
                engine, self._metrics, time.monotonic_ns, embeds=self._embeds, takes_images=self._takes_images
            )
            self._made.set()
            self._step(loop)
        except BaseException as error:  # what an engine may raise is not known
            self._fail(error if isinstance(error, TpyError) else Internal(f"the engine failed: {exception_text(error)}"))
        finally:
            self._made.set()
            try:
                engine.close()
            except Exception as error:
                self._log("error", f"{self._name}: closing the engine failed: {exception_text(error)}")
            self._metrics.close()

    def _step(self, loop: StepLoop) -> None:
        while loop.failure is None:
            with self._wake:
                while loop.is_idle and not self._stopping:
                    self._wake.wait()
                if self._stopping:
                    break
            self._let_others_run()
            loop.turn(self._host, self._step_limit_s * _HELD_STEP_FACTOR)
        if loop.failure is None:
            loop.fail(Unavailable(f"instance '{self._name}' is closed"))

    def _let_others_run(self) -> None:
        """The step of an engine may hold the GIL, and then nobody else runs: what has come for it joins before, not one request
        for each step."""
        until_ns = time.monotonic_ns() + GIVE_WAY_NS_MAX
        while not self._host.is_quiet() and time.monotonic_ns() < until_ns:
            time.sleep(_PAUSE_S)

    # The thread that watches

    def _watch_steps(self) -> None:
        limit_s = self._step_limit_s
        loop = self._loop
        assert loop is not None
        while not self._ended.wait(limit_s / _LOOKS):
            began_ns = loop.step_began_ns
            if began_ns and time.monotonic_ns() - began_ns > limit_s * NS_PER_S and loop.failure is None:
                self._fail(Internal(f"the engine did not return from a step within {limit_s:g} s"))

    def _fail(self, error: TpyError) -> None:
        """Once, by whichever thread notices."""
        loop = self._loop
        self.end_reason = f"instance '{self._name}': {error.message}"
        if loop is not None and loop.failure is None:
            self._log("error", self.end_reason)
            loop.fail(error)
            os.write(self._writable, b"x")

    def _close_pipe(self) -> None:
        os.close(self._readable)
        if not self._thread.is_alive():  # else it may still write
            os.close(self._writable)
