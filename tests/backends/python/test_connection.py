"""The server's end of the connection to a worker, over a socket pair, with a process that is played."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.shortage import threads_cannot_start
from tpy.backend import Demand
from tpy.limits import WORKER_MESSAGES_AT_ONCE_MAX
from tpy_data.backends.python.environment.process import WorkerProcess
from tpy_data.backends.python.environment.threads import ReaderThread
from tpy_data.backends.python.protocol import connection as connection_module
from tpy_data.backends.python.protocol.connection import WorkerConnection
from tpy_data.backends.python.worker.wire.core.batch import Layout
from tpy_data.backends.python.worker.wire.core.frames import FrameDecoder, FrameKind, ProtocolViolation, ReceivedFrame, encode
from tpy_data.backends.python.worker.wire.core.session import SessionState
from tpy_data.backends.python.worker.wire.endpoint import Endpoint


class Played:
    """A connection whose worker is the test's: `theirs` is that end; `taken` is what came, with whether on the loop."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.gone = False
        self.reader = ReaderThread()
        process: Any = SimpleNamespace(
            name="m",
            pid=1,
            socket=ours,
            tokens=None,
            spawner=SimpleNamespace(reader=self.reader),
            wait_exited=lambda _: self.gone,
            end=lambda _: "was ended",
        )
        self.connection = WorkerConnection(cast(WorkerProcess, process))
        self.taken: list[tuple[FrameKind, int, bool]] = []
        self.lost = 0
        for kind in (FrameKind.HELLO, FrameKind.READY, FrameKind.RESULT, FrameKind.NOTIFICATION):
            self.connection.handlers[kind] = self.take
        self.connection.on_loss.append(self._lose)
        self.takes_long = False

    def take(self, message: ReceivedFrame, on_loop: bool) -> bool:
        if on_loop and self.takes_long:
            return False
        self.taken.append((message.kind, message.stream, on_loop))
        return True

    def _lose(self) -> None:
        self.lost += 1

    def say(self, *kinds: FrameKind, stream: int = 0, header: bytes = b"{}") -> None:
        self.theirs.sendall(b"".join([b"".join(encode(kind, stream, header, [], 0)) for kind in kinds]))

    def serve(self) -> None:
        """Until the model is loaded."""
        self.connection.send(FrameKind.LOAD, 0, b"{}")
        self.say(FrameKind.HELLO, FrameKind.READY)
        assert self.connection.drive(lambda: self.connection.state is SessionState.SERVING, 10)
        self.taken.clear()

    def heard(self) -> list[FrameKind]:
        """The kinds of the messages that the worker was sent."""
        decoder = FrameDecoder()
        self.theirs.setblocking(False)
        while True:
            try:
                decoder.feed(self.theirs.recv(1 << 20))
            except BlockingIOError:
                break
        kinds = []
        while (frame := decoder.next_frame()) is not None:
            kinds.append(frame.kind)
        return kinds

    def close(self) -> None:
        self.connection.give_up()
        self.reader.close()
        self.theirs.close()


class Loop:
    """The loop's part: `turn` is one."""

    def __init__(self) -> None:
        self.watching: list[tuple[int, Any]] = []

    def watch(self, descriptor: int, reader: Any) -> bool:
        self.watching.append((descriptor, reader))
        return True

    def wait_watching(self) -> None:
        """Until the connection has itself watched again, by a thread that has done what the loop left to it."""
        while not self.watching:
            threading.Event().wait(0.001)

    def turn(self) -> Demand:
        descriptor, reader = self.watching[-1]
        after: Demand = reader.ready()
        if after is Demand.PAUSE:
            os.close(descriptor)
            self.watching.remove((descriptor, reader))
        return after


@pytest.fixture
def played() -> Iterator[Played]:
    played = Played()
    yield played
    played.close()


def test_messages_that_come_together_are_taken_one_by_one(played: Played) -> None:
    """The socket does not say that the second is there: a worker that loads in no time was waited for until its time-out."""
    played.connection.send(FrameKind.LOAD, 0, b"{}")
    played.say(FrameKind.HELLO, FrameKind.READY)
    assert played.connection.drive(lambda: len(played.taken) == 2, 0)
    assert not played.connection.drive(lambda: False, 0)


def test_a_process_that_is_gone_is_lost_although_its_socket_is_open(played: Played) -> None:
    played.serve()
    played.say(FrameKind.RESULT, stream=1)
    played.gone = True
    played.connection.require_alive()
    assert played.taken == [(FrameKind.RESULT, 1, False)], "what it said last is heard"
    assert (str(played.connection.lost), played.lost) == ("the process is gone", 1)
    assert played.connection.ready() is Demand.PAUSE


def test_the_loop_takes_some_messages_at_a_time(played: Played) -> None:
    loop = Loop()
    played.serve()
    played.connection.watch(_with_loop(loop))
    played.say(*[FrameKind.NOTIFICATION] * 150)
    assert [loop.turn() for _ in range(4)] == [Demand.CONTINUE, Demand.CONTINUE, Demand.READ, Demand.READ]
    assert len(played.taken) == 150
    assert all(on_loop for _, _, on_loop in played.taken)


def test_what_takes_long_is_left_to_a_thread_with_what_was_received_with_it(played: Played) -> None:
    """The socket does not show that: it waited until the worker sent something more, perhaps for ever."""
    loop = Loop()
    played.serve()
    played.connection.watch(_with_loop(loop))
    played.takes_long = True
    played.say(FrameKind.RESULT, FrameKind.RESULT, FrameKind.NOTIFICATION, stream=1)
    assert loop.turn() is Demand.PAUSE
    loop.wait_watching()
    assert played.taken == [(FrameKind.RESULT, 1, False), (FrameKind.RESULT, 1, False), (FrameKind.NOTIFICATION, 1, False)]
    played.takes_long = False
    played.say(FrameKind.NOTIFICATION)
    assert loop.turn() is Demand.READ
    assert played.taken[3:] == [(FrameKind.NOTIFICATION, 0, True)]


def test_who_sends_faster_than_it_is_read_is_not_read_for_ever(played: Played) -> None:
    """Neither a time limit nor the metrics page waits for its end."""
    played.serve()

    def take(message: ReceivedFrame, on_loop: bool) -> bool:
        played.say(FrameKind.NOTIFICATION)
        return True

    played.connection.handlers[FrameKind.NOTIFICATION] = take
    played.say(FrameKind.NOTIFICATION)
    played.connection.read()
    assert not played.connection.drive(lambda: False, 0)


def test_a_long_header_is_not_looked_at_on_the_loop(played: Played) -> None:
    loop = Loop()
    played.serve()
    played.connection.watch(_with_loop(loop))
    played.say(FrameKind.NOTIFICATION, header=b" " * 20_000)
    assert loop.turn() is Demand.PAUSE
    loop.wait_watching()
    assert played.taken == [(FrameKind.NOTIFICATION, 0, False)]


@pytest.mark.parametrize(
    "raw", [b"x" * 100, b"".join(encode(FrameKind.EXECUTE, 1, b"", [], 0)), b"".join(encode(FrameKind.CALL, 1, b"", [], 0))]
)
def test_what_no_worker_sends_is_its_end(played: Played, raw: bytes) -> None:
    played.serve()
    played.heard()
    played.theirs.sendall(raw)
    played.connection.read()
    assert played.connection.is_lost()
    assert played.lost == 1
    assert played.theirs.recv(10) == b"", "the worker sees it too"


def test_a_worker_that_reads_nothing_holds_up_nobody(played: Played) -> None:
    """And gets all of it in order, as soon as it reads."""
    played.serve()
    assert played.heard() == [FrameKind.LOAD]
    sizes = [100_000] * 10
    for size in sizes:
        layout = Layout()
        layout.data, layout.data_bytes = [b"x" * size], size
        played.connection.send(FrameKind.EXECUTE, 1, b"{}", layout)
    played.connection.send(FrameKind.READY_CHECK, 7, b"{}")
    decoder = FrameDecoder()
    kinds: list[FrameKind] = []
    played.theirs.settimeout(10)
    while FrameKind.READY_CHECK not in kinds:
        decoder.feed(played.theirs.recv(1 << 20))
        while (frame := decoder.next_frame()) is not None:
            kinds.append(frame.kind)
    assert kinds == [FrameKind.EXECUTE] * 10 + [FrameKind.READY_CHECK]


def test_the_file_of_a_segment_comes_although_nothing_could_be_sent(played: Played) -> None:
    """It was closed with the first try, and the worker ended: a segment was announced without its file."""
    played.serve()
    filler = os.dup(played.connection.fileno())
    os.set_blocking(filler, False)
    frame = b"".join(encode(FrameKind.READY_CHECK, 1, b"{}", [], 0))
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(filler, frame)
    os.set_blocking(filler, True)
    os.close(filler)
    layout = Layout()
    layout.add("IN", 11, np.arange(100_000, dtype=np.float32))
    loan = played.connection.lend(layout)
    played.connection.send(FrameKind.EXECUTE, 1, b"[]", layout, loan)
    played.theirs.settimeout(10)
    worker = Endpoint(played.theirs, writable=True)
    while (message := worker.receive()).kind is not FrameKind.EXECUTE:
        pass
    assert message.segment is not None
    assert (message.segment[:400_000].view(np.float32) == np.arange(100_000)).all()


def test_a_worker_that_reads_no_replies_cannot_ask_for_ever(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server kept 90,000 replies per second for it. One that is only stopped keeps its batches."""
    monkeypatch.setattr(connection_module, "WORKER_MESSAGES_UNREAD_MAX", 100)
    played.serve()

    def ask(message: ReceivedFrame, on_loop: bool) -> bool:
        played.connection.send(FrameKind.REPLY, message.stream, b" " * 10_000)
        return True

    played.connection.handlers[FrameKind.QUERY] = ask
    for _ in range(200):
        if not played.connection.is_lost():
            played.say(FrameKind.QUERY)
            played.connection.read()
    assert "wait for it to read them" in str(played.connection.lost)


def test_a_worker_is_lost_when_no_thread_can_be_started_for_it(played: Played) -> None:
    """The job stayed undone for ever, and the instance with it."""
    played.serve()
    done: list[bool] = []
    with threads_cannot_start():
        played.connection.later(lambda: done.append(True))
    assert not played.connection.helper.is_busy
    played.connection.read()
    assert "can't start new thread" in str(played.connection.lost)
    assert played.lost == 1
    assert not done
    played.connection.give_up()


def test_a_message_that_needs_a_thread_loses_the_worker_when_there_is_none(played: Played) -> None:
    played.serve()
    loop = Loop()
    played.connection.watch(loop)
    played.takes_long = True
    played.say(FrameKind.RESULT)
    with threads_cannot_start():
        assert loop.turn() is Demand.PAUSE
    assert "can't start new thread" in str(played.connection.lost)


class _Weak:
    pass


def test_the_reason_of_a_loss_keeps_no_memory(played: Played) -> None:
    """Its traceback had the frames that map segments: these stayed until the garbage collector came by."""
    played.serve()
    held: list[weakref.ref[_Weak]] = []

    def fail(message: ReceivedFrame, on_loop: bool) -> bool:
        local = _Weak()
        held.append(weakref.ref(local))
        try:
            raise OSError("no memory")
        except OSError:
            raise ProtocolViolation("a segment that cannot be mapped") from None

    played.connection.handlers[FrameKind.NOTIFICATION] = fail
    played.say(FrameKind.NOTIFICATION)
    played.connection.read()
    assert str(played.connection.lost) == "a segment that cannot be mapped"
    assert held[0]() is None


@pytest.mark.parametrize("reads", [True, False])
def test_batches_that_the_worker_had_not_read_are_known(played: Played, reads: bool) -> None:
    played.serve()
    played.heard()
    played.connection.send(FrameKind.EXECUTE, 1, b"[]")
    if reads:
        played.heard()
    played.theirs.close()
    played.connection.read()
    assert played.connection.is_lost()
    assert played.connection.is_unread is not reads


def test_a_worker_that_has_finalized_may_end(played: Played) -> None:
    """Whoever else reads sees the end of its stream before the thread that finalizes looks."""
    loop = Loop()
    played.serve()
    played.connection.watch(_with_loop(loop))
    played.connection.handlers[FrameKind.FINALIZED] = played.take
    played.connection.send(FrameKind.FINALIZE, 0, b"{}")
    played.say(FrameKind.FINALIZED, FrameKind.NOTIFICATION)
    played.heard()
    played.theirs.close()
    assert loop.turn() is Demand.PAUSE
    assert [kind for kind, _, _ in played.taken] == [FrameKind.FINALIZED]
    assert played.connection.drive(lambda: played.connection.state is SessionState.ENDED, 0)
    assert not played.connection.is_lost()


def test_without_a_loop_a_thread_reads(played: Played) -> None:
    played.serve()
    played.connection.watch(None)
    played.say(FrameKind.RESULT, stream=3)
    while not played.taken:
        threading.Event().wait(0.001)
    assert played.taken == [(FrameKind.RESULT, 3, False)]


def test_a_thread_reads_on_where_the_loop_has_ended(played: Played) -> None:
    loop = Loop()
    played.serve()
    played.connection.watch(_with_loop(loop))
    ((descriptor, reader),) = loop.watching
    os.close(descriptor)
    reader.unwatched()
    played.say(FrameKind.RESULT, stream=3)
    while not played.taken:
        threading.Event().wait(0.001)
    assert played.taken == [(FrameKind.RESULT, 3, False)]


def test_a_thread_takes_what_the_loop_has_received_and_not_taken(played: Played) -> None:
    loop = Loop()
    played.serve()
    played.connection.watch(_with_loop(loop))
    played.say(*[FrameKind.NOTIFICATION] * (WORKER_MESSAGES_AT_ONCE_MAX + 1))
    assert loop.turn() is Demand.CONTINUE
    ((descriptor, reader),) = loop.watching
    os.close(descriptor)
    reader.unwatched()
    while len(played.taken) <= WORKER_MESSAGES_AT_ONCE_MAX:
        threading.Event().wait(0.001)


def _with_loop(loop: Loop) -> object:
    return loop


def test_a_whole_frame_of_a_batch_is_sent(played: Played) -> None:
    played.serve()
    (frame,) = encode(FrameKind.EXECUTE, 1, b"[]", [], 0)
    played.heard()
    assert played.connection.send_frame(bytes(frame))
    assert played.heard() == [FrameKind.EXECUTE]


def test_a_whole_frame_is_not_sent_when_memory_is_to_be_given_back(played: Played) -> None:
    """It has no room for the note, and the worker would keep the memory."""
    played.serve()
    played.heard()
    worker = Endpoint(played.theirs, writable=True)
    layout = Layout()
    layout.add("OUT", 11, np.zeros(100_000, np.float32))
    worker.write(FrameKind.RESULT, 1, b"{}", layout, worker.lend(layout))
    played.connection.read()  # and nobody keeps what was in the memory
    (frame,) = encode(FrameKind.EXECUTE, 1, b"[]", [], 0)
    assert not played.connection.send_frame(bytes(frame))
    assert played.heard() == []
    played.connection.send(FrameKind.EXECUTE, 1, b"[]")
    assert played.connection.send_frame(bytes(frame))
    assert played.heard() == [FrameKind.EXECUTE, FrameKind.EXECUTE]


def test_a_whole_frame_waits_for_what_the_worker_has_not_taken(played: Played) -> None:
    played.serve()
    played.heard()
    played.connection.send(FrameKind.EXECUTE, 1, b" " * 4_000_000)
    (frame,) = encode(FrameKind.EXECUTE, 2, b"[]", [], 0)
    assert not played.connection.send_frame(bytes(frame))
    played.connection.lose(ProtocolViolation("over"))
    assert not played.connection.send_frame(bytes(frame))


def test_a_whole_frame_is_refused_before_the_model_is_loaded(played: Played) -> None:
    (frame,) = encode(FrameKind.EXECUTE, 1, b"[]", [], 0)
    assert not played.connection.send_frame(bytes(frame))
