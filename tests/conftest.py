"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from tpy.testing.loop_guard import LoopGuard

pytest_plugins = ["tests.time_limit"]


@pytest.fixture
def mock_clock() -> trio.testing.MockClock:
    """Virtual time that jumps to the next deadline whenever everybody sleeps."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
async def loop_guard() -> AsyncIterator[LoopGuard]:
    """Fails the test when one task step uses more than 50 ms of the loop thread's CPU time."""
    guard = LoopGuard()
    trio.lowlevel.add_instrument(guard)
    yield guard
    trio.lowlevel.remove_instrument(guard)
    guard.close()
    guard.check()
