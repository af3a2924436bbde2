"""LoopGuard: finds code that blocks the Trio loop."""

from __future__ import annotations

import gc
import threading
import time

import trio

from tpy import reactor
from tpy.units import NS_PER_MS

STEP_CPU_NS_MAX = 50 * NS_PER_MS
"""CPU time of the loop's thread in one task step. CPU and not wall time: a busy machine must not fail a test."""


class LoopGuard(trio.abc.Instrument):
    """Measures each task step of a run, and each turn of its reactor; `steps` counts the steps, `slow` names what took too long.
    Work that threads hand in with a token's `run_sync_soon` counts as steps of Trio's own entry-queue task.

    Time in the garbage collector does not count: how long it takes says how much a test process holds, not what the step did.

    Add it with `trio.lowlevel.add_instrument`, at the end call `check`. `close` lets go of reactors and the garbage collector.
    """

    def __init__(self, step_cpu_ns_max: int = STEP_CPU_NS_MAX) -> None:
        self.slow: list[str] = []
        self.steps = 0
        self._step_cpu_ns_max = step_cpu_ns_max
        self._began_ns = time.thread_time_ns()  # of the step that adds it
        self._collection_began_ns = 0
        self._thread = threading.get_ident()
        gc.callbacks.append(self._on_collection)
        reactor.GUARDS.append(self)

    def close(self) -> None:
        """Stop listening to the garbage collector and the reactors. Idempotent."""
        if self in reactor.GUARDS:
            reactor.GUARDS.remove(self)
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collection_began_ns = time.thread_time_ns()
        else:
            self._began_ns += time.thread_time_ns() - self._collection_began_ns

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task gets the loop."""
        self._began_ns = time.thread_time_ns()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """It gave the loop back."""
        self.steps += 1
        self._note(task.name)

    def before_turn(self) -> None:
        """A reactor, maybe that of another thread, begins to read what arrived."""
        if threading.get_ident() == self._thread:
            self._began_ns = time.thread_time_ns()

    def after_turn(self) -> None:
        """It gave the loop back."""
        if threading.get_ident() == self._thread:
            self._note("reactor")

    def _note(self, name: str) -> None:
        took_ns = time.thread_time_ns() - self._began_ns
        if took_ns > self._step_cpu_ns_max:
            self.slow.append(f"{name}: {took_ns / NS_PER_MS:.0f} ms")

    def check(self) -> None:
        """Raises AssertionError when any step took too much."""
        if self.slow:
            raise AssertionError(f"the Trio loop was blocked by: {'; '.join(self.slow)}")
