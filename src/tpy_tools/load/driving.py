"""A thread's loop over connections: begins requests when a schedule says so, and hands on what is answered.

Not a Trio program: the cost of a request here is what the figures are spoiled by, so that there is one epoll and nothing else.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tpy.limits.loading import LOAD_ANSWER_S_MAX
from tpy_tools.load.core.answers import AnswerPart, BrokenAnswer
from tpy_tools.load.core.schedules import Schedule
from tpy_tools.load.links import ClientConnection, Target, connect

_NS_PER_S = 1_000_000_000
_POLL_S = 1.0
_COARSE_S = 0.002
"""epoll counts in milliseconds. What is left of a wait below this is waited for by select, which counts in microseconds."""

SUCCESS = frozenset({0, 200})
"""Statuses of answers that are not errors: gRPC's and HTTP's."""


class ServerLost(Exception):
    """The server cannot be reached any more, or has stopped answering. `str()` says how."""


class Slot:
    """A place for one request at a time. `call` is the number that `CallSource.take` gave the request, `due_ns` the time from
    which its latency counts, `first_ns` and `last_ns` the times of its first and latest response, `responses` their number.
    `latest` is for the observer, None when a request begins."""

    __slots__ = ("begun_ns", "busy", "call", "due_ns", "first_ns", "last_ns", "latest", "link", "number", "on_link", "responses")

    def __init__(self, number: int, link: ClientConnection, on_link: int) -> None:
        self.number = number
        self.link = link
        self.on_link = on_link
        self.busy = False
        self.call = 0
        self.due_ns = self.begun_ns = self.first_ns = self.last_ns = 0
        self.responses = 0
        self.latest: AnswerPart | None = None


class CallSource(Protocol):
    """The requests, one after another."""

    def take(self, slot: int) -> tuple[int, bytes]:
        """The next request: a number of the caller's, and its bytes (Template.fill)."""
        ...


class Observer(Protocol):
    """Takes note of answers."""

    def sent(self, duration_ns: int) -> None:
        """Requests were written to a socket."""
        ...

    def responded(self, slot: Slot, answer: AnswerPart, now_ns: int) -> None:
        """A response that others follow has come; `slot.responses` and `slot.last_ns` are those before it."""
        ...

    def finished(self, slot: Slot, answer: AnswerPart, now_ns: int) -> None:
        """A request is answered, or has failed: a status not in SUCCESS."""
        ...


class Driver:
    """Drives the requests of one schedule. `slots` are connected at once, more of them up to `slots_max` when all are busy."""

    def __init__(
        self,
        target: Target,
        schedule: Schedule,
        calls: CallSource,
        observer: Observer,
        *,
        slots: int,
        slots_max: int = 0,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.schedule = schedule
        self._target = target
        self._calls = calls
        self._observer = observer
        self._slots_max = max(slots, slots_max)
        self._now_ns = now_ns
        self._epoll = select.epoll()
        self._links: dict[int, ClientConnection] = {}
        self._on: dict[int, list[Slot]] = {}
        self._free: deque[Slot] = deque()
        self._count = 0
        self._busy = 0
        self._watched: dict[int, Callable[[], None]] = {}
        try:
            while self._count < slots:
                self._connect()
        except OSError as error:
            self.close()
            raise self._lost(error) from error

    def watch(self, file: int, ready: Callable[[], None]) -> None:
        """Call `ready` whenever the file can be read."""
        self._watched[file] = ready
        self._epoll.register(file, select.EPOLLIN)

    def close(self) -> None:
        """End all connections."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._epoll.close()

    def run(self) -> None:
        """Run until the schedule is done. Raises ServerLost."""
        heard_ns = self._now_ns()
        while not self.schedule.done:
            self._begin(None)
            ready = self._poll()
            now = self._now_ns()
            if ready or not self._busy:
                heard_ns = now
            elif now - heard_ns > LOAD_ANSWER_S_MAX * _NS_PER_S:
                raise ServerLost(
                    f"no answer of {self._target.authority} for {LOAD_ANSWER_S_MAX:.0f} s, with {self._busy} requests in flight"
                )
            for file, events in ready:
                link = self._links.get(file)
                if link is None:
                    watched = self._watched.get(file)
                    if watched is not None:
                        watched()
                    continue
                try:
                    self._serve(file, link, events)
                except (OSError, BrokenAnswer) as error:
                    self._replace(file, link, error)

    def _serve(self, file: int, link: ClientConnection, events: int) -> None:
        if events & ~select.EPOLLOUT:
            answers = link.receive()
            now = self._now_ns()
            slots = self._on[file]
            for on_link, answer in answers:
                slot = slots[on_link]
                if answer.final:
                    self._finish(slot, answer, now)
                else:
                    self._observer.responded(slot, answer, now)
                    if not slot.responses:
                        slot.first_ns = now
                    slot.responses += 1
                    slot.last_ns = now
            self._begin(link)
        elif link.flush():
            self._epoll.modify(file, select.EPOLLIN)

    def _finish(self, slot: Slot, answer: AnswerPart, now_ns: int) -> None:
        self._observer.finished(slot, answer, now_ns)
        slot.busy = False
        self._busy -= 1
        self._free.append(slot)
        self.schedule.answered()

    def _begin(self, touched: ClientConnection | None) -> None:
        """Begin what is due, and flush `touched` in any case."""
        dirty = {} if touched is None else {touched: None}
        take, free = self.schedule.take, self._free
        while free or self._count < self._slots_max:
            begun = self._now_ns()
            due = take(begun)
            if due is None:
                break
            if not free:
                try:
                    self._connect()
                except OSError as error:
                    raise self._lost(error) from error
            slot = free.popleft()
            slot.call, payload = self._calls.take(slot.number)
            slot.due_ns, slot.begun_ns, slot.last_ns, slot.responses, slot.busy = due, begun, due, 0, True
            slot.latest = None
            self._busy += 1
            slot.link.begin(slot.on_link, payload)
            dirty[slot.link] = None
        for link in dirty:
            begun = self._now_ns()
            file = link.fileno()
            try:
                if not link.flush():
                    self._epoll.modify(file, select.EPOLLIN | select.EPOLLOUT)
            except OSError as error:
                self._replace(file, link, error)
            self._observer.sent(self._now_ns() - begun)

    def _poll(self) -> list[tuple[int, int]]:
        """Wait for what can be read, or until the next request is due. It can be due already only when every slot is busy."""
        next_ns = self.schedule.next_ns()
        if next_ns is None or (not self._free and self._count >= self._slots_max):
            return self._epoll.poll(_POLL_S)
        wait_s = (next_ns - self._now_ns()) / _NS_PER_S
        if wait_s <= 0:
            return self._epoll.poll(0)
        if wait_s > _COARSE_S:
            return self._epoll.poll(min(_POLL_S, wait_s - _COARSE_S / 2))
        select.select([self._epoll], [], [], wait_s)
        return self._epoll.poll(0)

    def _connect(self) -> None:
        link = connect(self._target)
        file = link.fileno()
        count = min(link.slots, self._slots_max - self._count)
        slots = [Slot(self._count + on_link, link, on_link) for on_link in range(count)]
        self._count += count
        self._add(file, link, slots)

    def _add(self, file: int, link: ClientConnection, slots: list[Slot]) -> None:
        self._links[file] = link
        self._on[file] = slots
        self._free.extend(slots)
        self._epoll.register(file, select.EPOLLIN)

    def _replace(self, file: int, link: ClientConnection, error: Exception) -> None:
        """The link is lost: its requests have failed, and its slots go on over a new one. Raises ServerLost without one."""
        slots = self._on.pop(file)
        del self._links[file]
        now = self._now_ns()
        failed = AnswerPart(-1, f"the connection was lost: {error}".encode(), True)
        for slot in slots:
            if slot.busy:
                self._finish(slot, failed, now)
            self._free.remove(slot)
        link.close()  # this takes it out of epoll, too
        try:
            fresh = connect(self._target)
        except OSError as again:
            raise self._lost(again) from error
        for slot in slots:
            slot.link = fresh
        self._add(fresh.fileno(), fresh, slots)

    def _lost(self, error: OSError) -> ServerLost:
        return ServerLost(f"no server at {self._target.authority}: {error}")
