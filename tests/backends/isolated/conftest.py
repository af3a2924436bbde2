"""Workers of these tests are forked from templates that are forked, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.template_server import shared_templates


@pytest.fixture(scope="session", autouse=True)
def templates() -> Iterator[None]:
    """For the session, as the process that forks them takes half a second to start."""
    with shared_templates(hosting=True):
        yield
