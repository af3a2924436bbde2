"""Poller: reads all connections of a port that have something to read, in one task.

A connection stays registered in an epoll set of ours, and Trio waits for that set as for one descriptor: a separate task for each
connection would be registered anew before each request, and resumed for each."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from tpy.frontends.transport.receiver import Demand
from tpy.frontends.transport.turns import LoopTurns
from tpy.limits import LOOP_TURN_TASKS_MAX, POLLED_CONNECTIONS_MAX


class Polled(Protocol):
    """A wire as the poller sees it."""

    is_continuing: bool
    """Its receiver has asked for another turn (kept by the poller)."""

    def fileno(self) -> int:
        """The descriptor of its socket."""
        ...

    def receive(self) -> Demand:
        """Read what has arrived and hand it to the receiver."""
        ...

    def proceed(self) -> Demand:
        """Give the receiver another turn."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more is read: `error` is a bug in the receiver."""
        ...


class Poller:
    """Wires with the level-triggered epoll set that they are in while they are read. One piece of each wire that is ready is
    read in one turn of the loop; when the turn is long by then, the loop has a turn in between. Wires whose receivers have more
    to do with what has arrived proceed a few at a time, as LoopTurns has it."""

    def __init__(self, turns: LoopTurns) -> None:
        self._turns = turns
        self._epoll = select.epoll()
        # Wakes the task for a wire that has more to do from the beginning, while no other has anything to read.
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._is_rung = False
        self.wires: dict[int, Polled] = {}
        self._continuing: deque[Polled] = deque()

    @asynccontextmanager
    async def polling(self) -> AsyncIterator[None]:
        """Read within the block. Opens a nursery for the task."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()

    def close(self) -> None:
        """Release the descriptor."""
        trio.lowlevel.notify_closing(self._epoll)
        self._epoll.close()
        os.close(self._bell)

    def add(self, wire: Polled) -> None:
        """Read the wire from now on. Idempotent."""
        descriptor = wire.fileno()
        if self.wires.get(descriptor) is not wire:
            self._epoll.register(descriptor, select.EPOLLIN)
            self.wires[descriptor] = wire

    def begin(self, wire: Polled) -> None:
        """Read the wire from now on, and at once what has arrived, unless the turn is long: the request of a new connection is
        mostly there, and with its answer the reading may be over."""
        if self._turns.is_long or self._step(wire, wire.receive):
            self.add(wire)
            if wire.is_continuing and not self._is_rung:
                self._is_rung = True
                os.eventfd_write(self._bell, 1)

    def discard(self, wire: Polled) -> None:
        """Read it no more; to be called before its socket is closed. Idempotent."""
        descriptor = wire.fileno()
        if self.wires.get(descriptor) is wire:
            del self.wires[descriptor]
            self._epoll.unregister(descriptor)

    async def _run(self) -> None:
        poll, wires, turns, continuing = self._epoll.poll, self.wires, self._turns, self._continuing
        while True:
            if continuing:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(self._epoll)
            if self._is_rung:
                self._is_rung = False
                os.eventfd_read(self._bell)
            if len(wires) == 1 and not continuing:  # the set is ready because of a single connection
                ready = list(wires)
            else:
                ready = [descriptor for descriptor, _ in poll(0, POLLED_CONNECTIONS_MAX)]
            last = ready[-1] if ready else None
            for descriptor in ready:
                wire = wires.get(descriptor)
                if wire is None or wire.is_continuing:
                    continue
                self._step(wire, wire.receive)
                if descriptor != last and turns.is_long:
                    await trio.lowlevel.checkpoint()
            for _ in range(min(len(continuing), LOOP_TURN_TASKS_MAX)):
                wire = continuing.popleft()
                wire.is_continuing = False
                self._step(wire, wire.proceed)
                if turns.is_long:
                    break

    def _step(self, wire: Polled, step: Callable[[], Demand]) -> bool:
        """Returns False if the wire is to be read no more."""
        try:
            demand = step()
        except Exception as error:
            self.discard(wire)
            wire.end(error)  # whose task reports it
            return False
        if demand is Demand.CONTINUE:
            wire.is_continuing = True
            self._continuing.append(wire)
        elif demand is Demand.PAUSE:
            self.discard(wire)
            return False
        return True
