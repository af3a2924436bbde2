"""Fixtures of the control plane's tests."""

from __future__ import annotations

import pytest
import trio.testing

from tests.control.world import World


@pytest.fixture
async def world(autojump_clock: trio.testing.MockClock) -> World:
    """A control plane in virtual time, not yet running."""
    return World()
