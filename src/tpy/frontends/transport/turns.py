"""LoopTurns: who has much to do waits for its turn, so that no client's bytes hold up the others.

All work on bytes of clients is cut into steps of a few milliseconds at most. While a turn of the loop is short, a task goes on
with its next step; when it is long, tasks with more to do wait in line, and a few of them go on in each turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tpy.clock import Clock
from tpy.limits import LOOP_TURN_NS_MAX, LOOP_TURN_TASKS_MAX


class _TurnStart(trio.abc.Instrument):
    """The beginning of the present turn of a loop, for all ports with one clock; None while nobody looks."""

    def __init__(self, clock: Clock) -> None:
        self._now_ns = clock.now_ns
        self._users = 0
        self.began_ns: int | None = None

    def watch(self) -> None:
        """Look at the turns. To be called once by each user."""
        if not self._users:
            trio.lowlevel.add_instrument(self)
        self._users += 1

    def leave(self) -> None:
        """The counterpart of `watch`."""
        self._users -= 1
        if not self._users:
            trio.lowlevel.remove_instrument(self)
            self.began_ns = None

    def after_io_wait(self, timeout: float) -> None:
        """A turn begins (called by Trio)."""
        self.began_ns = self._now_ns()


_STARTS: trio.lowlevel.RunVar[dict[Clock, _TurnStart]] = trio.lowlevel.RunVar("tpy.frontends.transport.turns")


def _start_of(clock: Clock) -> _TurnStart:
    """The instrument of this Trio run."""
    try:
        starts = _STARTS.get()
    except LookupError:
        starts = {}
        _STARTS.set(starts)
    return starts.setdefault(clock, _TurnStart(clock))


class LoopTurns:
    """The turns of the Trio loop that it is made in. Outside of `watched` no turn is long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = _start_of(clock)
        self._line = trio.lowlevel.ParkingLot()
        self._somebody = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look at the turns within the block. Opens a nursery for the task that calls the waiters."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._call_those_in_line)
            self._start.watch()
            try:
                yield
            finally:
                self._start.leave()
            nursery.cancel_scope.cancel()

    @property
    def is_long(self) -> bool:
        """True if this turn has taken long already."""
        began_ns = self._start.began_ns
        return began_ns is not None and self._clock.now_ns() - began_ns > LOOP_TURN_NS_MAX

    async def wait(self) -> None:
        """Let others have their turn; after a long one, as many as were in line before."""
        if self.is_long:
            self._somebody.unpark_all()
            await self._line.park()
        else:
            await trio.lowlevel.checkpoint()

    async def _call_those_in_line(self) -> None:
        try:
            while True:
                while not self._line:
                    await self._somebody.park()
                await trio.lowlevel.checkpoint()
                self._line.unpark(count=LOOP_TURN_TASKS_MAX)
        finally:
            self._line.unpark_all()
