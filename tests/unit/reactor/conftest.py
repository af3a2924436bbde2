"""A reactor that runs, in both forms."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.reactor.doubles import settle
from tpy import reactor as module
from tpy.reactor import Reactor, reactor_of_run


@pytest.fixture(params=["in place", "as a task"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The form of all reactors: a task of Trio reads where the system does not tell which epoll set is Trio's."""
    if request.param == "as a task":
        monkeypatch.setattr(module, "epoll_with", lambda descriptor: -1)
    return request.param


@pytest.fixture
async def reactor(form: str) -> AsyncIterator[Reactor]:
    """One that runs."""
    made = reactor_of_run()
    with made.running():
        await settle()
        yield made
    assert not made.polled
