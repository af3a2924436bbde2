"""The server's end of a worker's calls, without a worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tpy.backend import ServerCall, ServerCalls
from tpy.errors import Unavailable
from tpy.limits import MODEL_CALL_BYTES_OUTSTANDING_MAX
from tpy_data.backends.python.protocol.call_server import CallServer
from tpy_data.backends.python.protocol.connection import Connection


class NotedCall:
    """A call that notes whether it was cancelled."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def taken(self, count: int) -> None:
        pass


def call_server() -> CallServer:
    sent: list[Any] = []
    connection: Any = SimpleNamespace(
        name="m_0", handlers={}, is_busy=False, lend=lambda _: None, send=lambda *said: sent.append(said)
    )
    return CallServer(cast(Connection, connection), cast(ServerCalls, object()), lambda number: None)


def test_bytes_of_calls_that_are_over_may_be_used_again() -> None:
    calls = call_server()
    size = MODEL_CALL_BYTES_OUTSTANDING_MAX - 1
    for number in range(1, 10, 2):
        small, large = calls._admit(number, "n", 1), calls._admit(number + 1, "n", size)
        assert small is not None
        assert large is not None
        assert calls._admit(100, "n", 1) is None, "that is all there is"
        assert calls.outstanding() == 2
        for call in (small, large):
            calls.answer(call, Unavailable("over"))
        assert calls.outstanding() == 0


def test_when_the_worker_is_gone_its_calls_are_cancelled() -> None:
    calls = call_server()
    outstanding = calls._admit(1, "n", 1)
    assert outstanding is not None
    call = NotedCall()
    outstanding.call = cast(ServerCall, call)
    calls.cancel_all()
    assert call.cancelled
    assert calls.outstanding() == 0
    assert calls._admit(2, "n", MODEL_CALL_BYTES_OUTSTANDING_MAX) is not None
