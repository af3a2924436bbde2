"""Descriptors that the loop reads for backends."""

from __future__ import annotations

import os

import pytest
import trio

from tpy.backend import Demand
from tpy.reactor import reactor_of_run
from tpy_data.engine.watched import WatchedDescriptors


class Reading:
    """A reader of an eventfd, and its end."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.demand = Demand.READ
        self.read = trio.Event()
        self.ends = 0

    def ready(self) -> Demand:
        os.eventfd_read(self.descriptor)
        self.read.set()
        return self.demand

    def unwatched(self) -> None:
        self.ends += 1

    def is_open(self) -> bool:
        try:
            os.fstat(self.descriptor)
        except OSError:
            return False
        return True


async def test_a_descriptor_is_read_until_the_end_which_its_reader_is_told() -> None:
    watched, reading = WatchedDescriptors(reactor_of_run()), Reading()
    with trio.fail_after(30), watched.running():
        watched.add(reading.descriptor, reading)
        await reading.read.wait()
        assert reading.is_open()
    assert (reading.ends, reading.is_open()) == (1, False)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_reader_that_comes_before_or_after_is_told_at_once(when: str) -> None:
    reactor = reactor_of_run()
    watched, reading = WatchedDescriptors(reactor), Reading()
    with reactor.running():
        if when == "after":
            with watched.running():
                pass
        watched.add(reading.descriptor, reading)
        assert (reading.ends, reading.is_open()) == (1, False)


async def test_one_that_wants_nothing_more_is_closed_and_told_nothing() -> None:
    watched, reading = WatchedDescriptors(reactor_of_run()), Reading()
    reading.demand = Demand.PAUSE
    with trio.fail_after(30), watched.running():
        watched.add(reading.descriptor, reading)
        await reading.read.wait()
        while reading.is_open():
            await trio.lowlevel.checkpoint()
    assert reading.ends == 0
