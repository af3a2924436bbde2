"""CallDesk: the server's end of a worker's call line (worker/call_line.py), and the thread that reads and writes it.

    worker                    says CALL and REPOSITORY, and NOTE of what it took and does not want any more
    pump thread (here)        checks them, hands them to the server; encodes and says an ANSWER that is large
    Trio thread               says a small ANSWER itself, which spares a switch of threads, and hands others to the pump; it never
                              waits

There is a line, and a pump, only for a worker whose model has called. The pump waits for its worker alone: an instance's thread
and the batches that it runs are never held up by calls.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial

import msgspec

from tpy.backend import ServerCall, ServerCalls
from tpy.errors import InvalidArgument, TpyError, Unavailable, Unsupported
from tpy.limits import MODEL_CALL_BYTES_OUTSTANDING_MAX, MODEL_CALLS_OUTSTANDING_MAX
from tpy.messages import DataType, InferenceRequest, InferenceResponse
from tpy_data.backends.python import translation
from tpy_data.backends.python.given_batches import GivenBatches
from tpy_data.backends.python.output_lines import LogLine
from tpy_data.backends.python.worker.channel import Channel, Closed
from tpy_data.backends.python.worker.core.batch import Array, Descriptor, Layout, read
from tpy_data.backends.python.worker.core.frames import Frame, Kind, ProtocolViolation
from tpy_data.backends.python.worker.segments import Borrower, Lender, Loan

_UINT64_MAX = (1 << 64) - 1

_AT_ONCE_BYTES_MAX = 16 * 1024
"""Tensors of an answer that the Trio thread says itself: some microseconds to copy."""

_AT_ONCE_ELEMENTS_MAX = 64
"""Of its BYTES tensors, which are written one by one."""

Segment = tuple[int, int, bool]
_Answer = tuple[int, str, str, Sequence[Descriptor]]


class _Request(msgspec.Struct, frozen=True, array_like=True):
    model: str
    version: int
    id: str
    correlation_id: int | str
    flags: int
    timeout_us: int
    parameters: str
    outputs: tuple[str, ...]
    inputs: tuple[Descriptor, ...]


class _Call(msgspec.Struct, frozen=True):
    n: int
    s: Segment | None
    r: tuple[int, ...]
    d: tuple[int, ...]
    b: int
    """The number of the batch that waits for it, 0 for none."""
    m: bool
    q: _Request


class _Repository(msgspec.Struct, frozen=True):
    n: int
    s: Segment | None
    r: tuple[int, ...]
    d: tuple[int, ...]
    o: str
    m: str
    v: int | None = None
    u: bool = False
    c: str = ""
    f: tuple[Descriptor, ...] = ()


class _Note(msgspec.Struct, frozen=True):
    t: tuple[tuple[int, int], ...]
    c: tuple[int, ...]
    r: tuple[int, ...]


_decode_call = msgspec.json.Decoder(_Call).decode
_decode_repository = msgspec.json.Decoder(_Repository).decode
_decode_note = msgspec.json.Decoder(_Note).decode
_encode = msgspec.json.Encoder().encode


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
        if self._pump is not None and self._pump is not threading.current_thread():
            self._pump.join()

    def outstanding(self) -> int:
        """How many calls the worker waits for."""
        return len(self._outstanding)

    def answer(self, outstanding: _Outstanding, said: InferenceResponse | TpyError | bool) -> None:
        """Say this, or have the pump do it. Never waits."""
        if _is_small(said) and self._speaking.acquire(blocking=False):
            try:
                if not self._answers and self._rest is None and self._say_at_once(outstanding, said):
                    return
            finally:
                self._speaking.release()
        with self._lock:
            if self._wake >= 0:
                self._answers.append((outstanding, said))
                os.eventfd_write(self._wake, 1)

    # The pump

    def _run(self) -> None:
        channel = self._channel
        assert channel is not None
        poller = select.poll()
        poller.register(channel.fileno(), select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        why = ""
        try:
            while not self._closed:
                ready = [descriptor for descriptor, _ in poller.poll()]
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                    self._say_waiting(channel)
                if channel.fileno() in ready:
                    frame: Frame | None = channel.receive()
                    while frame is not None:
                        self._hear(channel, frame)
                        frame = channel.buffered()
        except Closed:
            pass
        except (ProtocolViolation, msgspec.MsgspecError) as error:
            why = f"the worker process broke its line for calls: {error}"
        except Exception as error:  # a bug of ours in here must not leave the worker waiting
            why = f"the line for calls has ended on a bug: {type(error).__name__}: {error}"
        if why:
            self._log("error", why)
        self._shut(channel)

    def _shut(self, channel: Channel) -> None:
        with self._speaking, self._lock:
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
            self._infer(channel, _decode_call(frame.header), frame.data)
        elif frame.kind is Kind.NOTE:
            note = _decode_note(frame.header)
            self._lender.take_back(note.r)
            for number, count in note.t:
                self._take(number, count)
            for number in note.c:
                self._cancel(number)
        elif frame.kind is Kind.REPOSITORY:
            self._control(channel, _decode_repository(frame.header), frame.data)
        else:
            raise ProtocolViolation(f"unexpected {frame.kind.name}")

    def _settle(self, channel: Channel, said: _Call | _Repository) -> Array | None:
        """The segment of a message."""
        self._borrower.drop(said.d)
        self._lender.take_back(said.r)
        if said.s is None:
            return None
        number, size, is_new = said.s
        return self._borrower.borrow(number, size, channel.take_file() if is_new else None)

    def _infer(self, channel: Channel, said: _Call, data: memoryview) -> None:
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
        outstanding.call = self._server.infer(request, outstanding, streams=said.m, waiting=self.batches.waiting(said.b))

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

    def _control(self, channel: Channel, said: _Repository, data: memoryview) -> None:
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
        answer, final = _answer(said, layout)
        if layout.segment_bytes or layout.data_bytes > _AT_ONCE_BYTES_MAX:
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
        answer, final = _answer(said, layout)
        if not self._count_said(outstanding, said, final=final):
            return
        loan: Loan | None = None
        if layout.segment_bytes:
            try:
                loan = self._lender.lend(layout.placed, layout.segment_bytes)
            except OSError as error:
                answer = _error(Unavailable(f"no shared memory for {layout.segment_bytes} bytes of outputs: {error}"))
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

    def _header(self, number: int, answer: _Answer, loan: Loan | None, *, final: bool) -> bytes:
        return _encode(
            {
                "n": number,
                "f": final,
                "s": None if loan is None else (loan.number, loan.size, loan.descriptor >= 0),
                "r": self._borrower.take_released(),
                "d": self._lender.take_dropped(),
                "a": answer,
            }
        )


def _answer(said: InferenceResponse | TpyError | bool, layout: Layout) -> tuple[_Answer, bool]:
    """What is said, its tensors laid out, and whether it is the last."""
    if isinstance(said, bool):
        return (-1, "", "true" if said else "false", ()), True
    if isinstance(said, TpyError):
        return _error(said), True
    if said.error is not None:
        return _error(said.error), said.final
    outputs = [layout.add(each.name, each.datatype.number, translation.storage(each)) for each in said.outputs]
    return (-1, "", translation.parameters_text(said.parameters), outputs), said.final


def _error(error: TpyError) -> _Answer:
    return translation.code_of(error), error.message, "", ()


def _is_small(said: InferenceResponse | TpyError | bool) -> bool:
    """Whether it takes next to no time to write down."""
    if not isinstance(said, InferenceResponse):
        return True
    size = 0
    for tensor in said.outputs:
        array = tensor.array
        if tensor.datatype is not DataType.BYTES:
            size += array.nbytes
        elif array.size > _AT_ONCE_ELEMENTS_MAX:
            return False
        else:
            size += sum([len(element) for element in array.reshape(-1)])
    return size <= _AT_ONCE_BYTES_MAX
