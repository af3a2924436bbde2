"""Reactor: the loop waits for bytes in place, and hands them on without a turn of Trio.

The connections of clients and of workers stay in an epoll set of ours, which has Trio's own as one more descriptor. When Trio is
about to wait, the reactor waits in its place and reads what arrives. Trio goes on as soon as a task can run, something that Trio
waits for has happened, or a deadline is due. So a request in which no task has a part costs no turn of Trio
([decision](../../docs/adr/0060-the-loop-waits-for-bytes-in-place.md)).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

import trio

from tpy.clock import Clock, SystemClock
from tpy.demand import Demand
from tpy.limits import LOOP_TURN_NS_MAX, LOOP_TURN_TASKS_MAX, POLLED_DESCRIPTORS_MAX
from tpy.units import NS_PER_S

if TYPE_CHECKING:
    import asyncio

DEADLINES_UNREAD_S_MAX = 0.001
"""The time for which the loop reads what arrives without a look at the deadlines of tasks, one of which may have come nearer:
Trio's timers are as exact as that, and a look costs as much as all system calls of a request."""

IDLE_WAIT_S_MAX = 60.0
"""Tests wait for less for the loop to be idle. When Trio would wait for longer, it is for a deadline, or for nothing."""


class Polled(Protocol):
    """A descriptor that is read on the Trio thread, and outside of tasks: nothing that waits, or asks for the current task, may
    be called."""

    is_continuing: bool
    """It has asked for another turn (kept by the reactor)."""

    def fileno(self) -> int:
        """The descriptor."""
        ...

    def receive(self) -> Demand:
        """Read what has arrived."""
        ...

    def proceed(self) -> Demand:
        """Go on after `Demand.CONTINUE`."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more is read: `error` is a bug in `receive` or `proceed`."""
        ...


class TurnGuard(Protocol):
    """Looks at the turns of all reactors of the process, in their threads."""

    def before_turn(self) -> None:
        """A turn begins."""
        ...

    def after_turn(self) -> None:
        """It is over."""
        ...


GUARDS: list[TurnGuard] = []
"""Of tests: what is done in a reactor is not a step of a task, which Trio's instruments see."""


class Reactor(trio.abc.Instrument):
    """Descriptors in the level-triggered epoll set of one Trio run, and calls of other threads. Of each descriptor that is ready
    one piece is read in one turn of the loop, and some with more to do go on; when the turn is long by then, the
    others have to wait for the next one.

    Works while somebody is in `running`, and must be used on the Trio thread, but for `run_sync_soon`.
    """

    def __init__(self, clock: Clock) -> None:
        self.polled: dict[int, Polled] = {}
        self._now_ns = clock.now_ns
        self._token = trio.lowlevel.current_trio_token()
        # Wakes who waits for the set, for calls of other threads and for who has more to do from the beginning. Closed with the
        # last reference: a thread may ring at any time.
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._bell)
        self._is_rung = False
        self._users = 0
        self._began_ns: int | None = None
        self._ready: deque[int] = deque()  # of what the kernel said last, what there was no time for
        self._continuing: deque[Polled] = deque()
        self._calls: deque[Callable[[], object]] = deque()
        self._behind: deque[Callable[[], object]] = deque()  # for the end of the turn
        self._is_in_turn = False
        self._is_scheduled = False  # a task can run
        self.shares_descriptors = False
        """Tasks of Trio wait for what other processes may take, as a listening socket that they share."""
        self.host: asyncio.AbstractEventLoop | None = None
        """The loop that waits for the reactor, where Trio is its guest. To be set before it runs."""
        self._trios_epoll = -1
        """Trio's descriptor, if the reactor waits in its place; else a task of Trio waits for the set of the reactor."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Work within the block, and as long as somebody else is in such a block."""
        if not self._users:
            self._epoll = select.epoll()
            self._epoll.register(self._bell, select.EPOLLIN)
            self._task = trio.CancelScope()
            trio.lowlevel.add_instrument(self)
            if self.host is None:
                trio.lowlevel.spawn_system_task(self._find_trios_epoll, self._task)
            else:
                self.host.add_reader(self._epoll.fileno(), self._take_hosted)
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._stop()

    def _stop(self) -> None:
        trio.lowlevel.remove_instrument(self)
        self._task.cancel()
        self._began_ns, self._trios_epoll = None, -1
        self._ready.clear()
        self._continuing.clear()
        if self.host is not None:
            self.host.remove_reader(self._epoll.fileno())
        trio.lowlevel.notify_closing(self._epoll)
        self._epoll.close()
        for calls in (self._calls, self._behind):
            while calls:
                self._token.run_sync_soon(calls.popleft())

    @property
    def is_long(self) -> bool:
        """True if this turn has taken long already. Never while nobody is in `running`."""
        began_ns = self._began_ns
        return began_ns is not None and self._now_ns() - began_ns > LOOP_TURN_NS_MAX

    # Descriptors

    def add(self, polled: Polled) -> None:
        """Read it from now on. Idempotent."""
        descriptor = polled.fileno()
        if self.polled.get(descriptor) is not polled:
            self._epoll.register(descriptor, select.EPOLLIN)
            self.polled[descriptor] = polled

    def begin(self, polled: Polled) -> None:
        """Read it from now on, and at once what has arrived, unless the turn is long: the request of a new connection is mostly
        there, and with its answer the reading may be over."""
        if self.is_long or self._step(polled, polled.receive):
            self.add(polled)
            if polled.is_continuing:
                self._ring()

    def continue_soon(self, polled: Polled) -> None:
        """Read it from now on, and have it proceed: it has received what the kernel does not tell of any more."""
        self.add(polled)
        self._note(polled, Demand.CONTINUE)
        self._ring()

    def discard(self, polled: Polled) -> None:
        """Read it no more; to be called before it is closed. Idempotent."""
        descriptor = polled.fileno()
        if self.polled.get(descriptor) is polled:
            del self.polled[descriptor]
            self._epoll.unregister(descriptor)

    # Calls

    def run_sync_soon(self, call: Callable[[], object]) -> None:
        """As that of a TrioToken, without a turn of Trio while the reactor runs: any thread. Raises trio.RunFinishedError after
        the run. A call that raises is a bug, and ends the run."""
        self._calls.append(call)
        if self._users:
            self._ring()
        if not self._users:  # it may have stopped meanwhile
            self._token.run_sync_soon(self._call_next)

    def after_turn(self, call: Callable[[], object]) -> None:
        """Call this when what is ready in this turn was read, or soon outside of a turn; one at least in each turn, more while it
        is not long. On the Trio thread."""
        if not self._users:
            self._token.run_sync_soon(call)
            return
        self._behind.append(call)
        if not self._is_in_turn and len(self._behind) == 1:
            if self.host is not None:
                self.host.call_soon(self._take_hosted)
            elif self._trios_epoll < 0:
                self._ring()  # else it is seen before Trio waits

    @property
    def has_more(self) -> bool:
        """True if there is more to do, or to read, or one cannot know."""
        if not self._users or self.host is not None:
            return True
        return bool(self._waits_for_turn or self._epoll.poll(0, 1))

    @property
    def _waits_for_turn(self) -> bool:
        return bool(self._ready or self._continuing or self._calls or self._behind)

    def _call_next(self) -> None:
        if self._calls:  # else its turn came in another way
            self._calls.popleft()()

    def _ring(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            os.eventfd_write(self._bell, 1)

    # The turn of the loop

    def after_io_wait(self, timeout: float) -> None:
        """Tasks have their turn (called by Trio)."""
        self._began_ns = self._now_ns()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """A task can run (called by Trio)."""
        self._is_scheduled = True

    def before_io_wait(self, timeout: float) -> None:
        """Trio is about to wait, at most for this number of seconds (called by Trio, but never again after an exception)."""
        if self._trios_epoll >= 0:
            try:
                if timeout > 0:
                    self._wait(timeout)
                else:
                    self._look()
            except BaseException as bug:  # also sys.exit() in a call
                self._token.run_sync_soon(partial(_raise, bug))

    def _wait(self, timeout_s: float) -> None:
        """Read what arrives until Trio has something to do, or the time is over."""
        self._is_scheduled = False
        wait_s, is_whole, is_quiet, looked_ns = timeout_s, True, True, self._now_ns()
        while True:
            has_more = bool(self._ready or self._continuing or self._calls or self._behind)  # as _waits_for_turn
            events = [] if self._ready else self._epoll.poll(0 if has_more else wait_s, POLLED_DESCRIPTORS_MAX)
            if len(events) == 1 and events[0][0] == self._trios_epoll and not (has_more or self.shares_descriptors):
                return  # as below: what Trio alone waits for is not looked for twice
            now_ns = self._began_ns = self._now_ns()
            was_idle = not events and not has_more
            is_trios = not was_idle and self._take(events)
            if is_trios and not self.shares_descriptors and self._trios.poll(0):
                return  # Trio finds it, as nobody else takes it meanwhile
            if is_trios or self._is_scheduled or self._ready:
                break
            is_quiet = is_quiet and was_idle
            if not was_idle and now_ns - looked_ns < DEADLINES_UNREAD_S_MAX * NS_PER_S:
                wait_s, is_whole = min(timeout_s, DEADLINES_UNREAD_S_MAX), False
                continue
            left_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
            if left_s < DEADLINES_UNREAD_S_MAX or (was_idle and is_whole):
                if is_quiet and left_s >= DEADLINES_UNREAD_S_MAX and timeout_s < IDLE_WAIT_S_MAX:
                    return  # Trio waits for nothing to happen, and has to see the end of its time-out
                break
            wait_s, is_whole, looked_ns = min(timeout_s, left_s), True, now_ns
        self._token.run_sync_soon(_nothing)  # else Trio would wait for its time-out, blind to our set

    def _look(self) -> None:
        """Read what has arrived."""
        events = [] if self._ready else self._epoll.poll(0, POLLED_DESCRIPTORS_MAX)
        if events or self._waits_for_turn:
            self._began_ns = self._now_ns()
            self._take(events)

    def _take_hosted(self) -> None:
        """One turn, called by the host. What is left comes first in the next one: the kernel would tell it last."""
        try:
            self._look()
        except BaseException as bug:
            self._token.run_sync_soon(partial(_raise, bug))
        if self._waits_for_turn:
            self._ring()

    def _take(self, events: list[tuple[int, int]]) -> bool:
        """One turn, for what the kernel says is ready. Returns whether Trio waits for something of that."""
        for guard in GUARDS:
            guard.before_turn()
        self._is_in_turn = True
        try:
            ready, polled, is_trios = self._ready, self.polled, False
            for descriptor, _ in events:
                if descriptor == self._trios_epoll:
                    is_trios = True
                elif descriptor == self._bell:
                    os.eventfd_read(descriptor)
                    self._is_rung = False
                else:
                    ready.append(descriptor)
            for _ in range(len(self._calls)):
                self._calls.popleft()()
                if self.is_long:
                    break
            while ready:
                each = polled.get(ready.popleft())
                if each is not None and not each.is_continuing:
                    try:  # as in _step
                        demand = each.receive()
                    except Exception as error:
                        self._fail(each, error)
                    else:
                        if demand is not Demand.READ:
                            self._note(each, demand)
                    if ready and self.is_long:
                        break
            if not ready and self._continuing:  # what is ready comes first
                self._proceed()
            while self._behind:
                self._behind.popleft()()
                if self.is_long:
                    break
            return is_trios
        finally:
            self._is_in_turn = False
            for guard in GUARDS:
                guard.after_turn()

    def _proceed(self) -> None:
        """Have some descriptors with more to do go on."""
        continuing = self._continuing
        for _ in range(min(len(continuing), LOOP_TURN_TASKS_MAX)):
            each = continuing.popleft()
            each.is_continuing = False
            self._step(each, each.proceed)
            if self.is_long:
                break

    def _step(self, polled: Polled, step: Callable[[], Demand]) -> bool:
        """Returns False if it is to be read no more."""
        try:
            demand = step()
        except Exception as error:
            self._fail(polled, error)
            return False
        if demand is not Demand.READ:
            self._note(polled, demand)
        return demand is not Demand.PAUSE

    def _note(self, polled: Polled, demand: Demand) -> None:
        if demand is Demand.CONTINUE:
            if not polled.is_continuing:
                polled.is_continuing = True
                self._continuing.append(polled)
        elif demand is Demand.PAUSE:
            self.discard(polled)

    def _fail(self, polled: Polled, error: Exception) -> None:
        self.discard(polled)
        polled.end(error)  # which reports it

    # Where Trio's epoll set is, and what is done where that is not known

    async def _find_trios_epoll(self, scope: trio.CancelScope) -> None:
        with scope:
            found = await _trios_epoll()
            if found >= 0 and not scope.cancel_called:
                with contextlib.suppress(OSError):
                    self._trios = select.poll()
                    self._trios.register(found, select.POLLIN)
                    self._epoll.register(found, select.EPOLLIN)
                    self._trios_epoll = found
                    return
            while not scope.cancel_called:  # which the last steps may not have noticed, and then the set is closed
                self._look()
                if self._waits_for_turn:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(self._epoll)


async def _trios_epoll() -> int:
    """The descriptor of the epoll set of this Trio run; -1: the system does not tell."""
    try:
        mark = os.eventfd(0, os.EFD_CLOEXEC)
    except OSError:  # too many are open
        return -1
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.wait_readable, mark)
            for _ in range(2):  # it has had its turn then
                await trio.lowlevel.checkpoint()
            found = epoll_with(mark)
            nursery.cancel_scope.cancel()
    finally:
        os.close(mark)
    return found


def epoll_with(descriptor: int) -> int:
    """The epoll set of this process that has the descriptor in it; -1: the system does not tell, or not which: another set may
    know a file that had this number, and is open elsewhere."""
    contains = re.compile(rf"^tfd:\s*{descriptor}\s", re.MULTILINE)
    found: list[int] = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fdinfo"):
            with contextlib.suppress(OSError):  # closed meanwhile, by another thread
                is_epoll = os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]"
                if is_epoll:
                    with open(f"/proc/self/fdinfo/{name}") as file:
                        found += [int(name)] if contains.search(file.read()) else []
    return found[0] if len(found) == 1 else -1


def _nothing() -> None:
    pass


def _raise(bug: BaseException) -> NoReturn:
    raise bug


_REACTOR: trio.lowlevel.RunVar[Reactor] = trio.lowlevel.RunVar("tpy.reactor")


def reactor_of_run(clock: Clock | None = None) -> Reactor:
    """The one of this Trio run. The clock says how long turns are; that of the first caller counts."""
    try:
        return _REACTOR.get()
    except LookupError:
        reactor = Reactor(clock or SystemClock())
        _REACTOR.set(reactor)
        return reactor
