"""The server's ends of the side lines (worker/side_line.py), and the thread that reads them all.

A line is read by that thread as soon as something comes, and by whoever needs what has come so far (`drain`). Nothing here waits
for a worker: what does not fit into a socket's buffer breaks its line.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import select
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial

import msgspec

from tpy.backend import ExecutionResult, ModelMetrics
from tpy.errors import Internal, TpyError
from tpy_data.backends.python.answers import Answer, result_of
from tpy_data.backends.python.call_desk import CallDesk
from tpy_data.backends.python.late_answer import LateAnswer
from tpy_data.backends.python.metric_desk import MetricDesk
from tpy_data.backends.python.output_lines import LogLine
from tpy_data.backends.python.worker.core.frames import ProtocolViolation
from tpy_data.backends.python.worker.segments import map_sealed
from tpy_data.backends.python.worker.side_line import PACKET_BYTES_MAX

DRAIN_PACKETS_MAX = 256
"""Read in one go at most, so that one busy worker does not keep the thread from the others."""

EARLY_ANSWERS_MAX = 4096
"""Answers that came before the result of their batch was looked at. A worker that sends more of them makes them up."""

LINES_MAX_PER_POLL = 64

_LENGTH = struct.Struct("<I")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_LENGTH.size)


class _Family(msgspec.Struct, frozen=True, tag="family"):
    call: int
    name: str
    description: str
    kind: int


class _Metric(msgspec.Struct, frozen=True, tag="metric"):
    call: int
    family: int
    labels: dict[str, str]
    buckets: list[float]


class _Change(msgspec.Struct, frozen=True, tag="change"):
    metric: int
    operation: str
    value: float | str
    """A str for what JSON has no number for."""


class _Value(msgspec.Struct, frozen=True, tag="value"):
    call: int
    metric: int


class _CloseFamily(msgspec.Struct, frozen=True, tag="close_family"):
    family: int


class _Ready(msgspec.Struct, frozen=True, tag="ready"):
    call: int
    ready: bool
    error: str


class _Late(msgspec.Struct, frozen=True, tag="late"):
    number: int
    answer: Answer
    size: int
    """Of the file that came along, 0 for none."""


class _Calls(msgspec.Struct, frozen=True, tag="calls"):
    """The model is about to call others, over the socket that comes along."""


_Said = _Family | _Metric | _Change | _Value | _CloseFamily | _Ready | _Late | _Calls
_decode = msgspec.json.Decoder(_Said).decode
_encode = msgspec.json.Encoder().encode


class SideLine:
    """The line to one worker. `close` it when the worker is gone or going. Any thread."""

    def __init__(
        self,
        name: str,
        sock: socket.socket,
        registry: ModelMetrics,
        log: LogLine,
        calls: CallDesk,
        forgotten: Callable[[int], None],
    ) -> None:
        """From `SideDesk.open`. `forgotten` is told the descriptor when the line is closed."""
        self.calls = calls
        sock.setblocking(False)
        self._name = name
        self._socket: socket.socket | None = sock
        self._metrics = MetricDesk(name, registry)
        self._log = log
        self._lock = threading.Lock()
        self._calls = itertools.count()
        self._asked: dict[int, queue.SimpleQueue[tuple[bool, str]]] = {}
        self._late: dict[int, LateAnswer] = {}
        self._early: dict[int, LateAnswer] = {}
        """Answers whose batch's result was not looked at yet."""
        self._undo_settling = registry.before_reading(self._settle)
        self._forgotten = forgotten

    def fileno(self) -> int:
        """-1 when it is closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def drain(self) -> bool:
        """Take what has come. False when there is nothing more to come."""
        with self._lock:
            if self._socket is None:
                return False
            try:
                for _ in range(DRAIN_PACKETS_MAX):
                    if not self._take(self._socket):
                        return True
            except (OSError, EOFError):
                self._shut()
                return False
            except (ProtocolViolation, msgspec.MsgspecError, struct.error, ValueError) as error:
                self._log("error", f"the worker process broke its side line: {error}")
                self._shut()
                return False
        return True

    def expect(self, number: int) -> LateAnswer:
        """The answer that the worker will give to a request under this number."""
        with self._lock:
            answer = self._early.pop(number, None)
            if answer is None:
                answer = LateAnswer(partial(self._tell_ended, number))
                if self._socket is None:
                    answer.resolve(self._unhealthy())
                else:
                    self._late[number] = answer
            return answer

    def check_ready(self, timeout_s: float) -> bool:
        """What the model's is_ready says; false, with a log line, when that is an error or takes longer than `timeout_s`."""
        waiting: queue.SimpleQueue[tuple[bool, str]] = queue.SimpleQueue()
        call = next(self._calls)
        with self._lock:
            self._asked[call] = waiting
            sent = self._send({"type": "is_ready", "call": call})
        try:
            ready, error = waiting.get(timeout=timeout_s) if sent else (False, "the worker process is gone")
        except queue.Empty:
            ready, error = False, f"Timed out waiting for user-defined is_ready() response: {timeout_s:g} s"
        finally:
            self._asked.pop(call, None)
        if error:
            self._log("warning", f"is_ready: {error}")
        return ready

    def close(self) -> None:
        """Nothing comes any more: metrics are let go, late answers fail, nobody waits. Idempotent."""
        with self._lock:
            self._shut()

    # With the lock held

    def _take(self, sock: socket.socket) -> bool:
        """One packet. False when there is none now; raises EOFError when there will be none."""
        try:
            packet, ancillary, _, _ = sock.recvmsg(PACKET_BYTES_MAX, _ANCILLARY_BYTES, int(socket.MSG_CMSG_CLOEXEC))
        except BlockingIOError:
            return False
        files = _files(ancillary)
        try:
            if not packet:
                raise EOFError
            (length,) = _LENGTH.unpack_from(packet)
            body = memoryview(packet)[_LENGTH.size :]
            self._handle(_decode(body[:length]), body[length:], files)
        finally:
            for descriptor in files:
                os.close(descriptor)
        return True

    def _handle(self, said: _Said, data: memoryview, files: list[int]) -> None:
        match said:
            case _Change():
                self._metrics.change(said.metric, said.operation, float(said.value))
            case _Family():
                self._answer(said.call, lambda: self._metrics.family(said.name, said.description, said.kind))
            case _Metric():
                self._answer(said.call, lambda: self._metrics.metric(said.family, said.labels, said.buckets))
            case _Value():
                self._answer(said.call, lambda: repr(self._metrics.value(said.metric)))
            case _CloseFamily():
                self._metrics.close_family(said.family)
            case _Ready():
                waiting = self._asked.get(said.call)
                if waiting is not None:
                    waiting.put((said.ready, said.error))
            case _Late():
                self._resolve(said, data, files)
            case _Calls():
                if not files:
                    raise ProtocolViolation("a line for calls came without its socket")
                self.calls.open(files.pop())

    def _answer(self, call: int, ask: Callable[[], int | str]) -> None:
        error = ""
        result: int | str | None = None
        try:
            result = ask()
        except TpyError as refused:
            error = refused.message
        self._send({"type": "reply", "call": call, "error": error, "result": result})

    def _resolve(self, said: _Late, data: memoryview, files: list[int]) -> None:
        segment = None
        if said.size:
            if not files:
                raise ProtocolViolation("an answer came without its file")
            segment = map_sealed(said.number, said.size, files[0])
        # A copy: the arrays must be aligned, and must not keep the packet.
        result = result_of(said.answer, memoryview(bytes(data)), segment)
        answer = self._late.pop(said.number, None)
        if answer is None:
            if said.number in self._early or len(self._early) >= EARLY_ANSWERS_MAX:
                raise ProtocolViolation("an answer to a request that was not left open")
            answer = self._early[said.number] = LateAnswer(partial(self._tell_ended, said.number))
        answer.resolve(result)

    def _send(self, message: dict[str, object]) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.send(_encode(message), int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL))
        except OSError:
            return False
        return True

    def _shut(self) -> None:
        if self._socket is None:
            return
        self._forgotten(self._socket.fileno())
        self._socket.close()
        self._socket = None
        self._undo_settling()
        self._metrics.close()
        for waiting in self._asked.values():
            waiting.put((False, "the worker process is gone"))
        late, self._late, self._early = list(self._late.values()), {}, {}
        for answer in late:
            answer.resolve(self._unhealthy())
        self.calls.close()

    def _unhealthy(self) -> ExecutionResult:
        return ExecutionResult(error=Internal(f"Stub process '{self._name}' is not healthy."))

    def _settle(self) -> None:
        self.drain()

    def _tell_ended(self, number: int) -> None:
        """On the Trio thread: nobody waits for this answer any more. Best effort: the answer would be dropped anyway."""
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.send(_encode({"type": "ended", "number": number}), int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL))


class SideDesk:
    """The thread that reads all lines of a backend, started with the first. `close` it."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._lines: dict[int, SideLine] = {}
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._thread: threading.Thread | None = None
        self._closing = False

    def open(self, name: str, sock: socket.socket, registry: ModelMetrics, log: LogLine, calls: CallDesk) -> SideLine:
        """A line over this socket, which is read from now on, until it ends or is closed. `calls` ends with it."""
        line = SideLine(name, sock, registry, log, calls, self._forget)
        with self._lock:
            descriptor = line.fileno()
            self._lines[descriptor] = line
            self._poll.register(descriptor, select.EPOLLIN)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="python-side-lines", daemon=True)
                self._thread.start()
        return line

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closing = True
            os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        self._poll.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._closing:
            for descriptor, _ in self._poll.poll(maxevents=LINES_MAX_PER_POLL):
                line = self._lines.get(descriptor)
                if line is not None:
                    line.drain()

    def _forget(self, descriptor: int) -> None:
        with self._lock:
            self._lines.pop(descriptor, None)
            with contextlib.suppress(OSError, ValueError):  # ValueError: closed already
                self._poll.unregister(descriptor)


def _files(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.extend(struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4]))
    return found
