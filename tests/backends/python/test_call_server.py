"""The server's end of a worker's calls, without a worker."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.backends.python.calls import Call, FakeServer
from tpy.errors import Unavailable
from tpy_data.backends.python.protocol import call_server
from tpy_data.backends.python.protocol.call_server import CallServer
from tpy_data.backends.python.protocol.connection import WorkerConnection
from tpy_data.backends.python.worker.wire.core.batch import Layout
from tpy_data.backends.python.worker.wire.core.datatypes import number_of
from tpy_data.backends.python.worker.wire.core.frames import FrameKind, ReceivedFrame

BYTES_MAX = 1000


class Rig:
    """A CallServer whose worker is the test: `answers` are the numbers of the calls that were answered, with the code of their
    error (-1 for none)."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, int]] = []
        connection: Any = SimpleNamespace(
            name="m_0",
            handlers={},
            helper=SimpleNamespace(is_busy=False),
            devices=None,
            lend=lambda _: None,
            send=self._sent,
            is_lost=lambda: self.is_lost,
        )
        self.is_lost = False
        self.server = FakeServer(lambda call: None)
        self.calls = CallServer(cast(WorkerConnection, connection), self.server, lambda number: None)
        self._take = connection.handlers[FrameKind.CALL]

    def _sent(self, kind: FrameKind, stream: int, header: bytes, *_: object) -> None:
        assert kind is FrameKind.ANSWER
        self.answers.append((stream, json.loads(header)[1][0]))

    def call(self, number: int, size: int) -> Call | None:
        """The worker calls a model with an input of `size` bytes: what the server was asked; None if it was refused before."""
        layout, array, before = Layout(), np.zeros(size, np.uint8), self.server.count
        datatype = number_of(array.dtype)
        assert datatype is not None
        called = ["n", -1, "", 0, 0, 0, "", [], [layout.add("IN", datatype, array)]]
        header = memoryview(json.dumps([0, False, called]).encode())
        assert self._take(ReceivedFrame(FrameKind.CALL, number, header, memoryview(b"".join(layout.data))), False)
        return self.server.calls[-1] if self.server.count > before else None


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(call_server, "MODEL_CALL_BYTES_OUTSTANDING_MAX", BYTES_MAX)
    return Rig()


def test_bytes_of_calls_that_are_over_may_be_used_again(rig: Rig) -> None:
    for number in range(1, 10, 2):
        small, large = rig.call(number, 1), rig.call(number + 1, BYTES_MAX - 1)
        assert small is not None
        assert large is not None
        assert rig.call(100, 1) is None, "that is all there is"
        for call in (small, large):
            call.sink.refuse(Unavailable("over"))
        assert [stream for stream, _ in rig.answers] == [100, number, number + 1]
        assert all(code >= 0 for _, code in rig.answers)
        rig.answers.clear()


def test_when_the_worker_is_gone_its_calls_are_cancelled(rig: Rig) -> None:
    call = rig.call(1, 1)
    assert call is not None
    rig.calls.cancel_all()
    assert call.cancelled.is_set()
    assert rig.call(2, BYTES_MAX) is not None
    call.answer()
    assert rig.answers == [], "nobody waits for it"


def test_a_call_that_is_being_made_when_the_worker_is_lost_is_cancelled(rig: Rig) -> None:
    """In another thread, which looked for calls before the server knew of this one."""

    def lose(call: Call) -> None:
        rig.is_lost = True
        rig.calls.cancel_all()

    rig.server.behave = lose
    call = rig.call(1, 1)
    assert call is not None
    assert call.cancelled.is_set()
