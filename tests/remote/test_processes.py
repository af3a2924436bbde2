"""Frontend processes that cannot start, when that matters and when it does not."""

from __future__ import annotations

import os
import threading
from functools import partial

import pytest
import trio

from tests.frontends.http.fakes import FakeServices
from tpy.errors import Unavailable
from tpy.remote import FrontendCommand, run_frontend_processes


def _command() -> FrontendCommand:
    """One whose module and socket are not there."""
    ours, theirs = os.pipe()
    os.close(ours)
    os.close(theirs)
    return FrontendCommand(module="nowhere", frontends=(), options=b"", sockets=(ours,), drain_timeout_s=1.0)


async def test_one_that_cannot_start_ends_the_start() -> None:
    run = partial(run_frontend_processes, 1, _command(), FakeServices(), stop=trio.Event(), give_up=trio.Event())
    with pytest.RaisesGroup(
        pytest.RaisesExc(Unavailable, match="cannot start a frontend process: .* has ended"), flatten_subgroups=True
    ):
        await run()


async def test_after_the_stop_nobody_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ports are closed while a process is being started."""
    stop, give_up = trio.Event(), trio.Event()
    starting = threading.Event()

    stopped = threading.Event()

    def start(*_: object) -> None:
        starting.set()
        stopped.wait()
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr("tpy.remote.processes.start_template", start)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(run_frontend_processes, 2, _command(), FakeServices(), stop=stop, give_up=give_up),
        )
        await trio.to_thread.run_sync(starting.wait)
        give_up.set()
        stop.set()
        stopped.set()
