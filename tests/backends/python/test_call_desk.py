"""The server's end of a worker's calls, without a worker."""

from __future__ import annotations

import socket
import threading
from typing import cast

from tpy.backend import ServerCall, ServerCalls
from tpy.errors import Unavailable
from tpy.limits import MODEL_CALL_BYTES_OUTSTANDING_MAX
from tpy_data.backends.python.call_desk import CallDesk


class NotedCall:
    """A call that notes whether it was cancelled."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def taken(self, count: int) -> None:
        pass


def desk_of(said: list[str]) -> CallDesk:
    return CallDesk("m_0", cast(ServerCalls, object()), lambda level, text: said.append(text))


def test_bytes_of_calls_that_are_over_may_be_used_again() -> None:
    desk = desk_of([])
    size = MODEL_CALL_BYTES_OUTSTANDING_MAX - 1
    for number in range(1, 10, 2):
        small, large = desk._admit(number, "n", 1), desk._admit(number + 1, "n", size)
        assert small is not None
        assert large is not None
        assert desk._admit(100, "n", 1) is None, "that is all there is"
        assert desk.outstanding() == 2
        for call in (small, large):
            assert desk._count_said(call, Unavailable("over"), final=True)


def test_a_desk_that_is_closed_has_cancelled_what_was_called_and_has_no_thread() -> None:
    said: list[str] = []
    desk = desk_of(said)
    ours, theirs = socket.socketpair()
    with theirs:
        desk.open(ours.detach())
        outstanding = desk._admit(1, "n", 1)
        assert outstanding is not None
        call = NotedCall()
        outstanding.call = cast(ServerCall, call)
        assert [thread.name for thread in threading.enumerate() if "calls" in thread.name] == ["m_0 calls"]
        desk.close()
        assert not [thread for thread in threading.enumerate() if "calls" in thread.name]
        assert call.cancelled
        assert desk.outstanding() == 0
    assert said == []
