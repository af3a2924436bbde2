"""Alarm: a timer of one Trio task, for deadlines that come forward."""

from __future__ import annotations

import trio

from tpy.clock import Clock
from tpy.units import NS_PER_S


class Alarm:
    """Wakes the one task that waits, at a deadline that anyone on the Trio thread may bring forward meanwhile.

    Bringing it forward wakes nobody and costs a heap operation; putting it off is not possible: the task wakes at the
    earlier time, asks again, and waits again. So an owner whose deadlines come and go has at most one wake-up for each.

    It is as exact as Trio's own timers, which are so as epoll's time-out is: whole milliseconds, rounded up.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline_ns: int | None = None
        self._scope: trio.CancelScope | None = None

    def bring_forward(self, deadline_ns: int) -> None:
        """Wake the task at `deadline_ns` at the latest."""
        if self._deadline_ns is None or deadline_ns < self._deadline_ns:
            self._deadline_ns = deadline_ns
            if self._scope is not None:
                self._set(self._scope, deadline_ns)

    async def wait(self) -> int:
        """Sleep until the deadline and forget it. Returns the time to pass to a core: never before the deadline."""
        with trio.CancelScope() as scope:
            if self._deadline_ns is not None:
                self._set(scope, self._deadline_ns)
            self._scope = scope
            try:
                await trio.sleep_forever()
            finally:
                self._scope = None
        deadline_ns, self._deadline_ns = self._deadline_ns, None
        now_ns = self._clock.now_ns()
        return now_ns if deadline_ns is None else max(now_ns, deadline_ns)

    def _set(self, scope: trio.CancelScope, deadline_ns: int) -> None:
        ahead_ns = max(0, deadline_ns - self._clock.now_ns())
        scope.deadline = trio.current_time() + ahead_ns / NS_PER_S
