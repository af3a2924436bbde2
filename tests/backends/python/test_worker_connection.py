"""The worker's end of the connection to the server, over a socket pair: its threads, and garbage collection in the middle."""

from __future__ import annotations

import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tpy_data.backends.python.worker.link.connection import JOINED_BYTES_MAX, ServerConnection
from tpy_data.backends.python.worker.pb_utils.failures import TritonModelException
from tpy_data.backends.python.worker.wire.core.batch import Layout
from tpy_data.backends.python.worker.wire.core.frames import FrameDecoder, FrameKind, ReceivedFrame, encode
from tpy_data.backends.python.worker.wire.endpoint import Endpoint
from tpy_data.backends.python.worker.wire.segments import Lender, Loan


class Worker:
    """`connection`, whose server is the test's: `theirs` is that end."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.connection = ServerConnection(Endpoint(ours, writable=True, process=os.getpid()))
        self.answers = 0
        self.connection.handlers[FrameKind.ANSWER] = self._take

    def _take(self, message: ReceivedFrame) -> None:
        self.answers += 1

    def answer(self) -> None:
        self.theirs.sendall(b"".join(encode(FrameKind.ANSWER, 1, b"{}", [], 0)))

    def sent(self) -> list[FrameKind]:
        """The kinds of the messages that were sent."""
        decoder = FrameDecoder()
        decoder.feed(self.theirs.recv(1 << 20))
        kinds = []
        while (frame := decoder.next_frame()) is not None:
            kinds.append(frame.kind)
        return kinds

    def close(self) -> None:
        self.theirs.close()
        self.connection.close()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


def _ends(worker: Worker, function: Callable[[], object]) -> bool:
    """Returns True if the function returns, in a thread."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(5)
    ended = not thread.is_alive()
    worker.theirs.shutdown(socket.SHUT_RDWR)
    return ended


def test_who_becomes_the_reader_looks_first_whether_it_still_waits(worker: Worker) -> None:
    """Another thread took its answer after it had looked, and stopped reading: nothing more comes."""
    worker.answer()
    looks = 0

    def ready() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            worker.connection.poll()
            assert worker.answers == 1
            return False
        return True

    assert _ends(worker, lambda: worker.connection.wait(ready))


class Waiting:
    """A thread that waits until the worker has so many answers. `waits` is set while it has the lock, which it gives back when it
    reads, or waits its turn."""

    def __init__(self, worker: Worker, answers: int) -> None:
        self.waits = threading.Event()
        self._worker = worker
        self._answers = answers
        self._looks = 0
        self._thread = threading.Thread(target=worker.connection.wait, args=(self._look,), daemon=True)
        self._thread.start()
        assert self.waits.wait(5)

    def _look(self) -> bool:
        self._looks += 1
        if self._looks == 2:
            self.waits.set()
        return self._worker.answers >= self._answers

    def ends(self) -> bool:
        self._thread.join(5)
        return not self._thread.is_alive()


def test_who_waits_its_turn_reads_when_the_reader_has_what_it_waited_for(worker: Worker) -> None:
    """Nothing else would wake it."""
    reads = Waiting(worker, 1)
    waits = Waiting(worker, 2)
    worker.answer()
    assert reads.ends()
    worker.answer()
    assert waits.ends()


def test_responses_are_sent_together_when_the_thread_leaves(worker: Worker) -> None:
    with worker.connection.sending_together():
        worker.connection.send(FrameKind.RESPONSE, 1, "[]")
        worker.connection.send(FrameKind.RESPONSE, 2, "[]")
        with pytest.raises(BlockingIOError):
            worker.theirs.recv(1, socket.MSG_DONTWAIT)
    assert worker.sent() == [FrameKind.RESPONSE] * 2


def test_what_waits_to_be_sent_together_is_sent_before_all_else(worker: Worker) -> None:
    with worker.connection.sending_together():
        worker.connection.send(FrameKind.RESPONSE, 1, "[]")
        worker.connection.send(FrameKind.NOTIFICATION, 0, "{}")
        assert worker.sent() == [FrameKind.RESPONSE, FrameKind.NOTIFICATION]
        worker.connection.send(FrameKind.RESPONSE, 1, "[]")
        other = threading.Thread(target=worker.connection.send, args=(FrameKind.RESPONSE, 1, '["the last"]'))
        other.start()
        other.join()
        assert worker.sent() == [FrameKind.RESPONSE] * 2
        worker.connection.send(FrameKind.RESPONSE, 2, "[]")
        worker.connection.post(FrameKind.RESPONSE, 2, [])
        assert worker.sent() == [FrameKind.RESPONSE] * 2
        worker.connection.send(FrameKind.RESPONSE, 3, "[]")
        worker.answer()
        worker.connection.wait(lambda: worker.answers)
        assert worker.sent() == [FrameKind.RESPONSE]


def test_what_is_sent_together_is_bounded(worker: Worker) -> None:
    with worker.connection.sending_together():
        worker.connection.send(FrameKind.RESPONSE, 1, " " * JOINED_BYTES_MAX)
        assert worker.sent() == [FrameKind.RESPONSE]


def test_garbage_is_collected_while_memory_is_lent(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that it sends have a note about memory, too."""
    take = Lender.take

    def collect(self: Lender, size: int) -> Loan:
        self.dropped.append(7)
        worker.connection.post(FrameKind.NOTIFICATION, 0, {})
        return take(self, size)

    monkeypatch.setattr(Lender, "take", collect)
    layout = Layout()
    layout.add("OUT", 11, np.zeros(100_000, np.float32))
    assert _ends(worker, lambda: worker.connection.send(FrameKind.RESULT, 1, "[]", layout))
    assert worker.sent() == [FrameKind.NOTIFICATION, FrameKind.RESULT]


def test_garbage_is_collected_while_what_other_garbage_said_is_sent(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Endpoint.write
    collected = False

    def collect(self: Endpoint, *message: Any) -> memoryview | None:
        nonlocal collected
        if not collected:
            collected = True
            worker.connection.notify({})
        return write(self, *message)

    monkeypatch.setattr(Endpoint, "write", collect)
    assert _ends(worker, lambda: worker.connection.post(FrameKind.CALL_PROGRESS, 0, []))
    assert worker.sent() == [FrameKind.CALL_PROGRESS, FrameKind.NOTIFICATION]


def test_a_forked_process_does_not_wait_for_threads_that_it_has_not(worker: Worker) -> None:
    """Another thread was sending, and the server was behind, when the model forked: the lock is nobody's in the child."""
    text = " " * 1_000_000
    thread = threading.Thread(target=lambda: worker.connection.send(FrameKind.NOTIFICATION, 0, text))
    thread.start()
    worker.theirs.recv(1, socket.MSG_PEEK)  # it is at it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons say what this test is about
        child = os.fork()
    if not child:
        status = 1
        signal.alarm(5)
        try:
            worker.connection.notify({})
        except TritonModelException:
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    while thread.is_alive():
        worker.theirs.recv(1 << 20)
        thread.join(0.01)
    assert status == 0
