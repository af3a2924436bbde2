"""LoopTurns: who has much to do waits for its turn, so that no client's bytes hold up the others.

All work on bytes of clients is cut into steps of a few milliseconds at most. While a turn of the loop is short, a task goes on
with its next step; when it is long, tasks with more to do wait in line, and a few of them go on in each turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tpy.clock import Clock
from tpy.limits import LOOP_TURN_TASKS_MAX
from tpy.reactor import reactor_of_run


class LoopTurns:
    """The turns of the Trio loop that it is made in. Outside of `watched` no turn is long."""

    def __init__(self, clock: Clock) -> None:
        self.reactor = reactor_of_run(clock)
        self._line = trio.lowlevel.ParkingLot()
        self._somebody = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look at the turns within the block. Opens a nursery for the task that calls the waiters."""
        with self.reactor.running():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._call_those_in_line)
                yield
                nursery.cancel_scope.cancel()

    @property
    def is_long(self) -> bool:
        """True if this turn has taken long already."""
        return self.reactor.is_long

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
