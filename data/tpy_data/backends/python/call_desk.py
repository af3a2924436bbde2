"""CallDesk: the server's end of a worker's call line (worker/call_line.py), and the thread that reads and writes it.

    worker                    says CALL and REPOSITORY, and NOTE of what it took and does not want any more
    Trio thread               hears a small CALL, and says a small ANSWER, itself, which spares switches of threads; everything
                              else it leaves to the pump; it never waits
    pump thread (here)        hears and says the rest

One of the two hears at a time: the loop, while it watches the line (`_watched`), until it comes to something that is for the
pump; then the pump, for that and the next messages.

There is a line, and a pump, only for a worker whose model has called. The pump waits for its worker alone: an instance's thread
and the batches that it runs are never held up by calls.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from functools import partial

import msgspec

from tpy.backend import LoopCalls, ServerCall, ServerCalls
from tpy.errors import InvalidArgument, TpyError, Unavailable, Unsupported
from tpy.limits import MODEL_CALL_BYTES_OUTSTANDING_MAX, MODEL_CALLS_OUTSTANDING_MAX
from tpy.messages import InferenceRequest, InferenceResponse
from tpy_data.backends.python import translation
from tpy_data.backends.python.call_messages import (
    AT_ONCE_BYTES_MAX,
    AnswerTold,
    Call,
    RepositoryCall,
    decode_call,
    decode_note,
    decode_repository,
    encode,
    is_small,
    small_call,
    told_answer,
    told_error,
)
from tpy_data.backends.python.given_batches import GivenBatches
from tpy_data.backends.python.output_lines import LogLine
from tpy_data.backends.python.worker.channel import Channel, Closed
from tpy_data.backends.python.worker.core.batch import Array, Layout, read
from tpy_data.backends.python.worker.core.frames import Frame, Kind, ProtocolViolation
from tpy_data.backends.python.worker.segments import Borrower, Lender, Loan

_UINT64_MAX = (1 << 64) - 1

_HEARD_AT_ONCE_MAX = 8
"""Calls that the Trio thread makes in one go; more that have come by then are for the pump."""

_LEFT_IN_A_ROW = 16
"""Messages that the pump hears before the loop watches again: handing over costs more than what it spares."""


class _Outstanding:
    """One call that the worker waits for (a `CallSink`). `size` is that of its inputs in bytes."""

    __slots__ = ("_desk", "call", "model", "number", "sent", "size", "streams")

    def __init__(self, desk: CallDesk, number: int, model: str, size: int, *, streams: bool) -> None:
        self.number = number
        self.model = model
        self.size = size
        self.streams = streams
        self.sent = 0
        """Responses, but for the last, that the worker has not said to have taken."""
        self.call: ServerCall | None = None
        self._desk = desk

    def deliver(self, response: InferenceResponse) -> None:
        """On the Trio thread."""
        self._desk.answer(self, response)

    def refuse(self, error: TpyError) -> None:
        """On the Trio thread, or in the pump when the loop has ended."""
        self._desk.answer(self, type(error)(f"Model {self.model} - Error when running inference: {error}"))


class CallDesk:
    """One per worker. `batches` is told of what the worker is given and ends."""

    def __init__(self, name: str, server: ServerCalls | None, log: LogLine) -> None:
        self._name = name
        self._server = server
        self._log = log
        self.batches = GivenBatches()
        self._lock = threading.Lock()
        self._speaking = threading.Lock()
        """Held while something is said, and taken before `_lock`. The Trio thread only tries."""
        self._rest: memoryview | None = None
        """Of a frame that the Trio thread began."""
        self._channel: Channel | None = None
        self._pump: threading.Thread | None = None
        self._closed = False
        self._answers: deque[tuple[_Outstanding, InferenceResponse | TpyError | bool]] = deque()
        self._wake = -1
        self._outstanding: dict[int, _Outstanding] = {}
        self._bytes = 0
        self._lender = Lender()
        self._borrower = Borrower(writable=False)
        able: object = server
        self._loop = able if isinstance(able, LoopCalls) else None
        self._hearing = threading.Lock()
        """Held while something is heard, and taken before the others. The Trio thread only tries."""
        self._watched = False
        self._for_pump = 0
        self._left: Frame | None = None
        """Heard by the Trio thread, and for the pump."""
        self._broken: Exception | None = None

    def open(self, descriptor: int) -> None:
        """The worker's model is about to call over this socket, which is the desk's from now on. Raises ProtocolViolation for a
        second one."""
        with self._lock:
            if self._closed or self._channel is not None:
                os.close(descriptor)
                if self._closed:
                    return
                raise ProtocolViolation("a second line for calls")
            sock = socket.socket(fileno=descriptor)
            if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
                sock.close()
                raise ProtocolViolation("the line for calls is no such socket")
            sock.setblocking(True)
            self._channel = Channel(sock)
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._pump = threading.Thread(target=self._run, name=f"{self._name} calls", daemon=True)
            self._pump.start()

    def close(self) -> None:
        """The worker is gone or going: whatever it has called is cancelled. Idempotent."""
        self.batches.end_all()
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.shut_down()
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)
        if self._pump is not None and self._pump is not threading.current_thread():
            self._pump.join()

    def outstanding(self) -> int:
        """How many calls the worker waits for."""
        return len(self._outstanding)

    def answer(self, outstanding: _Outstanding, said: InferenceResponse | TpyError | bool) -> None:
        """Say this, or have the pump do it. Never waits."""
        if is_small(said) and self._speaking.acquire(blocking=False):
            try:
                if not self._answers and self._rest is None and self._say_at_once(outstanding, said):
                    return
            finally:
                self._speaking.release()
        with self._lock:
            if self._wake >= 0:
                self._answers.append((outstanding, said))
                os.eventfd_write(self._wake, 1)

    # What the loop hears (a `LineReader`)

    def ready(self) -> bool:
        """As `LineReader`."""
        channel = self._channel
        if channel is None or not self._hearing.acquire(blocking=False):
            return False
        try:
            if self._closed:
                return False
            frame = channel.receive_at_once()
            for _ in range(_HEARD_AT_ONCE_MAX):
                call = None if frame is None else small_call(frame)
                if frame is None or call is None:
                    break
                self._infer(channel, call, frame.data, at_once=True)
                frame = channel.buffered()
            self._left = frame
            return frame is None
        except Exception as error:  # whatever it is, the pump sees to it: the loop must not end
            self._broken = error
            return False
        finally:
            self._hearing.release()

    def unwatched(self) -> None:
        """As `LineReader`."""
        with self._lock:
            self._watched = False
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    # The pump

    def _run(self) -> None:
        channel = self._channel
        assert channel is not None
        news, all_of_it = select.poll(), select.poll()
        news.register(self._wake, select.POLLIN)
        all_of_it.register(self._wake, select.POLLIN)
        all_of_it.register(channel.fileno(), select.POLLIN)
        why = ""
        try:
            while not self._closed:
                if self._hears() and self._for_pump <= 0:
                    self._have_watched(channel)
                ready = [descriptor for descriptor, _ in (all_of_it if self._hears() else news).poll()]
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                    self._say_waiting(channel)
                if self._hears():
                    self._listen(channel, has_come=channel.fileno() in ready)
        except Closed:
            pass
        except (ProtocolViolation, msgspec.MsgspecError) as error:
            why = f"the worker process broke its line for calls: {error}"
        except Exception as error:  # a bug of ours in here must not leave the worker waiting
            why = f"the line for calls has ended on a bug: {type(error).__name__}: {error}"
        if why:
            self._log("error", why)
        self._shut(channel)

    def _hears(self) -> bool:
        """Whether it is the pump that hears; the loop's end of it comes at any time."""
        return not self._watched

    def _have_watched(self, channel: Channel) -> None:
        """Have the loop hear from now on, if it can."""
        self._for_pump = _LEFT_IN_A_ROW
        if self._loop is None:
            return
        try:
            descriptor = os.dup(channel.fileno())
        except OSError:
            return  # too many are open
        self._watched = True
        if not self._loop.watch(descriptor, self):
            os.close(descriptor)
            self._watched = False
            self._loop = None

    def _listen(self, channel: Channel, *, has_come: bool) -> None:
        with self._hearing:
            if self._broken is not None:
                raise self._broken
            frame, self._left = self._left or channel.buffered(), None
            if frame is None and has_come:
                frame = channel.receive()
            while frame is not None:
                self._for_pump -= 1
                self._hear(channel, frame)
                frame = channel.buffered()

    def _shut(self, channel: Channel) -> None:
        with self._hearing, self._speaking, self._lock:
            self._closed = True
            os.close(self._wake)
            self._wake = -1
            channel.close()
        for outstanding in self._outstanding.values():
            if outstanding.call is not None:
                outstanding.call.cancel()
        self._outstanding.clear()
        self._answers.clear()

    def _hear(self, channel: Channel, frame: Frame) -> None:
        if frame.kind is Kind.CALL:
            self._infer(channel, decode_call(frame.header), frame.data)
        elif frame.kind is Kind.NOTE:
            note = decode_note(frame.header)
            self._lender.take_back(note.r)
            for number, count in note.t:
                self._take(number, count)
            for number in note.c:
                self._cancel(number)
        elif frame.kind is Kind.REPOSITORY:
            self._control(channel, decode_repository(frame.header), frame.data)
        else:
            raise ProtocolViolation(f"unexpected {frame.kind.name}")

    def _settle(self, channel: Channel, said: Call | RepositoryCall) -> Array | None:
        """The segment of a message."""
        self._borrower.drop(said.d)
        self._lender.take_back(said.r)
        if said.s is None:
            return None
        number, size, is_new = said.s
        return self._borrower.borrow(number, size, channel.take_file() if is_new else None)

    def _infer(self, channel: Channel, said: Call, data: memoryview, *, at_once: bool = False) -> None:
        """`at_once`: on the Trio thread."""
        segment = self._settle(channel, said)
        told = said.q
        number = told.correlation_id
        if not 0 <= told.timeout_us <= _UINT64_MAX or (isinstance(number, int) and not 0 <= number <= _UINT64_MAX):
            raise ProtocolViolation(f"a call with correlation id {number} and a time-out of {told.timeout_us} us")
        size = sum([descriptor[5] for descriptor in told.inputs])
        outstanding = self._admit(said.n, told.model, size, streams=said.m)
        if outstanding is None:
            return
        request = InferenceRequest(
            model_name=told.model,
            model_version=None if told.version < 0 else told.version,
            id=told.id,
            inputs=tuple([translation.tensor(each[0], each[1], read(each, data, segment)) for each in told.inputs]),
            requested_outputs=told.outputs,
            parameters=translation.parameters_of(told.parameters),
            sequence=translation.sequence_of(told.correlation_id, told.flags),
            timeout_us=told.timeout_us,
        )
        assert self._server is not None
        infer = self._loop.infer_now if at_once and self._loop is not None else self._server.infer
        outstanding.call = infer(request, outstanding, streams=said.m, waiting=self.batches.waiting(said.b))

    def _admit(self, number: int, model: str, size: int, *, streams: bool = False) -> _Outstanding | None:
        """Count a call; None when it was refused, which the worker is told."""
        if number in self._outstanding or number <= 0:
            raise ProtocolViolation(f"call {number} is outstanding already")
        outstanding = _Outstanding(self, number, model, size, streams=streams)
        count = len(self._outstanding)
        if self._server is None:
            outstanding.refuse(Unsupported("there is no server around this model"))
        elif count >= MODEL_CALLS_OUTSTANDING_MAX:
            outstanding.refuse(
                Unavailable(f"{count} calls of instance '{self._name}' are outstanding, which is the most there may be")
            )
        elif count and self._bytes + size > MODEL_CALL_BYTES_OUTSTANDING_MAX:
            outstanding.refuse(
                Unavailable(
                    f"calls of instance '{self._name}' with {self._bytes} bytes of inputs are outstanding, with this it would "
                    f"be more than {MODEL_CALL_BYTES_OUTSTANDING_MAX}"
                )
            )
        else:
            with self._lock:
                self._outstanding[number] = outstanding
                self._bytes += size
            return outstanding
        return None

    def _control(self, channel: Channel, said: RepositoryCall, data: memoryview) -> None:
        segment = self._settle(channel, said)
        size = sum([descriptor[5] for descriptor in said.f])
        outstanding = self._admit(said.n, said.m, size)
        if outstanding is None:
            return
        server = self._server
        assert server is not None
        done = partial(self._controlled, outstanding)
        if said.o == "ready":
            server.is_model_ready(said.m, said.v, partial(self.answer, outstanding))
        elif said.o == "unload":
            server.unload_model(said.m, done, unload_dependents=said.u)
        elif said.o == "load":
            files = {each[0]: read(each, data, segment).tobytes() for each in said.f}
            try:
                request = translation.load_request(said.m, said.c, files)
            except InvalidArgument as error:
                done(error)
            else:
                server.load_model(request, done)
        else:
            raise ProtocolViolation(f"unknown order {said.o!r}")

    def _controlled(self, outstanding: _Outstanding, error: TpyError | None) -> None:
        """On the Trio thread, or in the pump."""
        if error is None:
            self.answer(outstanding, True)
        else:
            self.answer(outstanding, type(error)(translation.failed_request(self._name, error)))

    def _take(self, number: int, count: int) -> None:
        outstanding = self._outstanding.get(number)
        if outstanding is None:
            return  # its last response is on the way
        with self._lock:
            if not 0 <= count <= outstanding.sent or outstanding.call is None:
                raise ProtocolViolation(f"{count} of {outstanding.sent} responses were taken")
            outstanding.sent -= count
        outstanding.call.taken(count)

    def _cancel(self, number: int) -> None:
        with self._lock:
            outstanding = self._outstanding.pop(number, None)
            if outstanding is not None:
                self._bytes -= outstanding.size
        if outstanding is not None and outstanding.call is not None:
            outstanding.call.cancel()

    # Saying, with `_speaking` held

    def _say_waiting(self, channel: Channel) -> None:
        """In the pump: whatever waits to be said."""
        with self._speaking:
            rest, self._rest = self._rest, None
            if rest is not None:
                channel.send_rest(rest)
            while self._answers:
                self._say(channel, *self._answers.popleft())

    def _say_at_once(self, outstanding: _Outstanding, said: InferenceResponse | TpyError | bool) -> bool:
        """On the Trio thread: whether it was said, or will be, or has nobody to be said to."""
        channel = self._channel
        if channel is None or self._wake < 0:
            return True
        if self._lender.has_dropped:
            return False  # the pump has more to say than this
        layout = Layout()
        answer, final = told_answer(said, layout)
        if layout.segment_bytes or layout.data_bytes > AT_ONCE_BYTES_MAX:
            return False
        if self._count_said(outstanding, said, final=final):
            header = self._header(outstanding.number, answer, None, final=final)
            try:
                rest = channel.send_at_once(Kind.ANSWER, header, layout.data, layout.data_bytes)
            except Closed:
                return True  # the pump sees it too
            if rest:
                self._rest = rest
                with self._lock:
                    os.eventfd_write(self._wake, 1)
        return True

    def _say(self, channel: Channel, outstanding: _Outstanding, said: InferenceResponse | TpyError | bool) -> None:
        layout = Layout()
        answer, final = told_answer(said, layout)
        if not self._count_said(outstanding, said, final=final):
            return
        loan: Loan | None = None
        if layout.segment_bytes:
            try:
                loan = self._lender.lend(layout.placed, layout.segment_bytes)
            except OSError as error:
                answer = told_error(Unavailable(f"no shared memory for {layout.segment_bytes} bytes of outputs: {error}"))
                layout = Layout()
        header = self._header(outstanding.number, answer, loan, final=final)
        try:
            channel.send(Kind.ANSWER, header, layout.data, layout.data_bytes, -1 if loan is None else loan.descriptor)
        finally:
            if loan is not None:
                loan.sent()

    def _count_said(self, outstanding: _Outstanding, said: InferenceResponse | TpyError | bool, *, final: bool) -> bool:
        """Note that something is said of a call. False when the worker does not want to hear of it any more."""
        with self._lock:
            if self._outstanding.get(outstanding.number) is not outstanding:
                return isinstance(said, TpyError)  # what was refused at once was never known
            if final:
                del self._outstanding[outstanding.number]
                self._bytes -= outstanding.size
            else:
                outstanding.sent += 1
            return True

    def _header(self, number: int, answer: AnswerTold, loan: Loan | None, *, final: bool) -> bytes:
        return encode(
            {
                "n": number,
                "f": final,
                "s": None if loan is None else (loan.number, loan.size, loan.descriptor >= 0),
                "r": self._borrower.take_released(),
                "d": self._lender.take_dropped(),
                "a": answer,
            }
        )
