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


class LoopTurns(trio.abc.Instrument):
    """The turns of the Trio loop that it is made in. Outside of `watched` no turn is long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ns: int | None = None
        self._line = trio.lowlevel.ParkingLot()
        self._somebody = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look at the turns within the block. Opens a nursery for the task that calls those who wait."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._call_those_in_line)
            trio.lowlevel.add_instrument(self)
            try:
                yield
            finally:
                trio.lowlevel.remove_instrument(self)
                self._began_ns = None
            nursery.cancel_scope.cancel()

    @property
    def is_long(self) -> bool:
        """Whether this turn has taken long already."""
        return self._began_ns is not None and self._clock.now_ns() - self._began_ns > LOOP_TURN_NS_MAX

    async def wait(self) -> None:
        """Let others have their turn; after a long one, as many as were in line before."""
        if self.is_long:
            self._somebody.unpark_all()
            await self._line.park()
        else:
            await trio.lowlevel.checkpoint()

    def after_io_wait(self, timeout: float) -> None:
        """A turn begins (called by Trio)."""
        self._began_ns = self._clock.now_ns()

    async def _call_those_in_line(self) -> None:
        try:
            while True:
                while not self._line:
                    await self._somebody.park()
                await trio.lowlevel.checkpoint()
                self._line.unpark(count=LOOP_TURN_TASKS_MAX)
        finally:
            self._line.unpark_all()
