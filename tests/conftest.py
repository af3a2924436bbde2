"""Fixtures that every test may use."""

from __future__ import annotations

import pytest
import trio
import trio.testing


@pytest.fixture
def mock_clock() -> trio.testing.MockClock:
    """Virtual time that jumps to the next deadline whenever everybody sleeps."""
    return trio.testing.MockClock(autojump_threshold=0)
