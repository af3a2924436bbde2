"""ExactAlarm: calls at deadlines that come forward, near ones by a timer of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import trio

from tpy.alarm import Alarm
from tpy.clock import Clock, SystemClock
from tpy.demand import Demand
from tpy.kernel_timer import KernelTimer
from tpy.limits import EXACT_DEADLINE_NS_MAX
from tpy.reactor import Reactor, reactor_of_run


class ExactAlarm:
    """Calls `ring` on the Trio thread with the time to pass to a core, which is never before the deadline, and outside of tasks,
    where nothing may wait or ask for the current task.

    Its first deadline of the system clock that is at most EXACT_DEADLINE_NS_MAX ahead opens a kernel timer, which keeps that and
    all later ones and is read by the reactor: a ring costs no turn of Trio. Until then, and where no descriptor is left, an Alarm
    does. As that, it is at most brought forward.
    """

    def __init__(self, clock: Clock, ring: Callable[[int], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._alarm = Alarm(clock)
        self._reactor: Reactor | None = None  # while deadlines may be kept exactly
        self._timer: KernelTimer | None = None
        self._deadline_ns: int | None = None  # of the timer
        self._scope = trio.CancelScope()
        self._bug: BaseException | None = None
        self.is_continuing = False

    async def run(self) -> None:
        """Call until cancelled. Raises what `ring` raises."""
        reactor = reactor_of_run(self._clock) if isinstance(self._clock, SystemClock) else None
        with nullcontext() if reactor is None else reactor.running(), self._scope:
            self._reactor = reactor
            try:
                while True:
                    self._ring(await self._alarm.wait())
            finally:
                self._reactor = None
                if reactor is not None and self._timer is not None:
                    reactor.discard(self)
                    self._timer.close()
                    self._timer = None
        if self._bug is not None:
            raise self._bug

    def bring_forward(self, deadline_ns: int) -> None:
        """Ring at `deadline_ns` at the latest."""
        timer = self._timer or self._opened(deadline_ns)
        if timer is None:
            self._alarm.bring_forward(deadline_ns)
        elif self._deadline_ns is None or deadline_ns < self._deadline_ns:
            self._deadline_ns = deadline_ns
            timer.set(deadline_ns)

    def _opened(self, deadline_ns: int) -> KernelTimer | None:
        """A timer, if the deadline is near enough for one."""
        if self._reactor is None or deadline_ns - self._clock.now_ns() > EXACT_DEADLINE_NS_MAX:
            return None
        self._timer = KernelTimer.open()
        if self._timer is None:
            self._reactor = None  # one try
            return None
        try:
            self._reactor.add(self)
        except OSError:  # no memory, or too many are watched
            self._timer.close()
            self._timer = self._reactor = None
        return self._timer

    # Polled

    def fileno(self) -> int:
        """That of the timer."""
        return -1 if self._timer is None else self._timer.fileno()

    def receive(self) -> Demand:
        """The timer rings."""
        if self._timer is not None and self._timer.has_rung():
            deadline_ns, self._deadline_ns = self._deadline_ns, None
            self._ring(max(self._clock.now_ns(), deadline_ns or 0))
        return Demand.READ

    proceed = receive

    def end(self, error: BaseException | None = None) -> None:
        """The core failed."""
        self._bug = error
        self._scope.cancel()
