"""The server's end of the talk with a worker, over a socket pair."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tpy_data.backends.python.conversation import Conversation
from tpy_data.backends.python.process import WorkerProcess
from tpy_data.backends.python.side_line import SideLine
from tpy_data.backends.python.worker.core.frames import Kind, encode


def test_messages_that_come_together_are_heard_one_by_one() -> None:
    """The socket does not say that the second is there: a worker that loads in no time was waited for until its time-out."""
    ours, theirs = socket.socketpair()
    process: Any = SimpleNamespace(socket=ours, tokens=None, pid=1, wait_exited=lambda _: False)
    with ours, theirs:
        talk = Conversation("m", cast(WorkerProcess, process), cast(SideLine, None))
        talk.say(Kind.LOAD, b"{}")
        theirs.sendall(b"".join([*encode(Kind.HELLO, b"{}", [], 0), *encode(Kind.READY, b"1", [], 0)]))
        assert [talk.hear_within(0).kind, talk.hear_within(0).kind] == [Kind.HELLO, Kind.READY]
        with pytest.raises(TimeoutError):
            talk.hear_within(0)
