"""Alarm: a timer of one Trio task, for deadlines that come forward."""

from __future__ import annotations

import trio

from tpy.clock import Clock, SystemClock
from tpy.kernel_timer import KernelTimer
from tpy.limits import EXACT_DEADLINE_NS_MAX
from tpy.units import NS_PER_S


class Alarm:
    """Wakes the one task that waits, at a deadline that anyone on the Trio thread may bring forward meanwhile.

    Bringing it forward wakes nobody and costs a heap operation; putting it off is not possible: the task wakes at the
    earlier time, asks again, and waits again. So an owner whose deadlines come and go has at most one wake-up for each.

    Trio's own timers are as exact as epoll's time-out: whole milliseconds, rounded up. With `exact`, an alarm on the system clock
    opens a kernel timer for its first deadline that is at most EXACT_DEADLINE_NS_MAX ahead, and keeps that and all later ones by
    it; `close` releases it. Where no descriptor is left, Trio's timers go on.
    """

    def __init__(self, clock: Clock, *, exact: bool = False) -> None:
        self._clock = clock
        self._exact = exact and isinstance(clock, SystemClock)
        self._timer: KernelTimer | None = None
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
        while True:
            with trio.CancelScope() as scope:
                if self._deadline_ns is not None:
                    self._set(scope, self._deadline_ns)
                self._scope = scope
                try:
                    if self._timer is None:
                        await trio.sleep_forever()
                    else:
                        await self._timer.wait()
                finally:
                    self._scope = None
            deadline_ns = self._deadline_ns
            now_ns = self._clock.now_ns()
            if self._timer is not None and (deadline_ns is None or now_ns < deadline_ns):
                continue  # the timer has just been opened, or rang for a deadline that was told already
            self._deadline_ns = None
            return now_ns if deadline_ns is None else max(now_ns, deadline_ns)

    def close(self) -> None:
        """Release the kernel timer, if there is one. The alarm may be used again."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _set(self, scope: trio.CancelScope, deadline_ns: int) -> None:
        if self._timer is None:
            ahead_ns = max(0, deadline_ns - self._clock.now_ns())
            if not self._exact or ahead_ns > EXACT_DEADLINE_NS_MAX:
                scope.deadline = trio.current_time() + ahead_ns / NS_PER_S
                return
            self._timer = KernelTimer.open()
            if self._timer is None:
                self._exact = False  # one try
                scope.deadline = trio.current_time() + ahead_ns / NS_PER_S
                return
            scope.cancel()  # the task is to wait for the timer from now on
        self._timer.set(deadline_ns)
