"""A worker's CallPort: a third socket, made and handed over with the first call, for calls to the server and their answers.

Who reads it: the thread that waits for an answer, for all that wait; or, from the first call on that is not waited for where it
was made, a thread of its own. So somebody always reads while the server has something to say, and a plain call costs no switch to
another thread.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .channel import Channel, Closed
from .core.batch import Array, Layout, read
from .core.frames import HEADER_BYTES_MAX, Frame, Kind, ProtocolViolation
from .core.windows import BYTES_MAX, RESPONSES_MAX
from .failures import ErrorCode, TritonError, TritonModelException
from .messages import speakable
from .model_calls import LOADING
from .pending_call import PendingCall
from .request import InferenceRequest, target_of
from .response import InferenceResponse, received_response
from .segments import Borrower, Lender
from .side_line import SideLine
from .tensor import storage_of, wrap

_GONE = "the server is gone"

_UINT8 = 2
"""The type number of TYPE_UINT8."""

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decoder = json.JSONDecoder()


class _Note(NamedTuple):
    """Of call `number`, `taken` more responses were taken, or (0) nobody wants any more. `released` are segments."""

    number: int
    taken: int
    released: Sequence[int] = ()


class _Stream:
    """What was taken of a call with many responses and not said yet: it is said in lots, of at least half of what may wait."""

    __slots__ = ("_bytes", "_count", "_sizes")

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._count = 0

    def arrived(self, size: int) -> None:
        """A response with `size` bytes of tensors."""
        self._sizes.append(size)

    def taken(self) -> int:
        """One was taken: how many to speak of now, 0 for none."""
        self._count += 1
        self._bytes += self._sizes.popleft()
        if 2 * self._count < RESPONSES_MAX and 2 * self._bytes < BYTES_MAX:
            return 0
        told, self._count, self._bytes = self._count, 0, 0
        return told


class CallLine:
    """One per worker. `batch` is the number of the batch that the main thread executes, 0 for none: a call that it makes is one
    that the batch waits for."""

    def __init__(self, side: SideLine) -> None:
        self.phase = LOADING
        self.batch = 0
        self._side = side
        self._channel: Channel | None = None
        self._process = os.getpid()
        self._main_thread = threading.get_ident()
        self._lender = Lender()
        self._borrower = Borrower(writable=True)
        self._speaking = threading.Lock()
        self._lending = threading.Lock()
        """Of segments and numbers. The reader may wait for this one, but never for `_speaking`, whose holder may wait for it."""
        self._number = 0
        self._open: dict[int, tuple[PendingCall, _Stream | None]] = {}
        self._notes: deque[_Note] = deque()
        self._turn = threading.Condition(threading.Lock())
        self._someone_reads = False
        self._has_reader = False
        self._lost = ""

    def infer(self, request: InferenceRequest, *, streams: bool) -> PendingCall:
        """As `CallPort.infer`."""
        layout = Layout()
        try:
            told = _told(request, layout)
        except Exception as unsent:
            raise TritonModelException(f"the inputs of the request cannot be sent: {type(unsent).__name__}: {unsent}") from None
        blocks = self.batch if threading.get_ident() == self._main_thread else 0
        header = {"b": blocks, "m": streams, "q": told}
        return self._call(Kind.CALL, header, layout, streams=streams)

    def prepare_waiting_elsewhere(self) -> None:
        """As `CallPort.prepare_waiting_elsewhere`: from now on a thread of its own reads."""
        with self._turn:
            if not self._has_reader:
                self._has_reader = True
                threading.Thread(target=self._read_forever, name="tpy-calls", daemon=True).start()

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """As `CallPort.load_model`."""
        layout = Layout()
        given = [layout.add(speakable(path), _UINT8, np.frombuffer(content, np.uint8)) for path, content in files.items()]
        self._ask({"o": "load", "m": speakable(name), "c": speakable(config), "f": given}, layout)

    def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        """As `CallPort.unload_model`."""
        self._ask({"o": "unload", "m": speakable(name), "u": unload_dependents}, Layout())

    def is_model_ready(self, name: str, version: int | None) -> bool:
        """As `CallPort.is_model_ready`."""
        return self._ask({"o": "ready", "m": speakable(name), "v": version}, Layout()) == "true"

    def close(self) -> None:
        """For this process, not for one that it was forked from."""
        if self._channel is not None:
            self._channel.close()

    def _ask(self, header: dict[str, Any], layout: Layout) -> str:
        response, _ = self._call(Kind.REPOSITORY, header, layout, streams=False).take()
        error = response.error()
        if error is not None:
            raise TritonModelException(error.message())
        return response.parameters()

    def _call(self, kind: Kind, header: dict[str, Any], layout: Layout, *, streams: bool) -> PendingCall:
        if os.getpid() != self._process:
            raise TritonModelException("models can be called in the model's own process only, not in one that it has started")
        channel = self._channel or self._connect()
        text = _encode(header)
        if len(text) > HEADER_BYTES_MAX // 2:
            raise TritonModelException(f"a call with {len(text)} bytes of ids, parameters and names is too long to be sent")
        with self._lending:
            self._number = number = self._number + 1
            stream = _Stream() if streams else None
            taken = None if stream is None else partial(self._take, number, stream)
            pending = PendingCall(self._wait, taken, partial(self._note, _Note(number, 0)))
            loan = None
            if layout.segment_bytes:
                try:
                    loan = self._lender.lend(layout.placed, layout.segment_bytes)
                except OSError as error:
                    raise TritonModelException(f"no shared memory for {layout.segment_bytes} bytes of inputs: {error}") from None
            segment = None if loan is None else [loan.number, loan.size, loan.descriptor >= 0]
            head = f'{{"n":{number},"s":{_encode(segment)},{self._settled()},{text[1:]}'
        self._open[number] = pending, stream
        try:
            with self._speaking:
                file = -1 if loan is None else loan.descriptor
                channel.send(kind, head.encode(), layout.data, layout.data_bytes, file)
        except Closed:
            self._lost = _GONE
        finally:
            if loan is not None:
                loan.sent()
        if self._lost:
            self._lose(self._lost)
        if self._notes:
            self._flush()
        return pending

    def _settled(self) -> str:
        released, dropped = self._borrower.take_released(), self._lender.take_dropped()
        if not released and not dropped:
            return '"r":[],"d":[]'
        return f'"r":{_encode(released)},"d":{_encode(dropped)}'

    def _connect(self) -> Channel:
        """Hand the server its end of a new socket."""
        with self._turn:
            if self._channel is None:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    self._side.tell({"type": "calls"}, file=theirs.fileno())
                except BaseException:
                    ours.close()
                    raise
                finally:
                    theirs.close()
                self._channel = Channel(ours, process=self._process)
            return self._channel

    # Notes: what may have to be said in the middle of garbage collection. Whoever holds `_speaking` says them afterwards.

    def _note(self, note: _Note) -> None:
        self._notes.append(note)
        self._flush()

    def _flush(self) -> None:
        while self._notes and self._speaking.acquire(blocking=False):
            try:
                notes = [self._notes.popleft() for _ in range(len(self._notes))]
                ended = [note.number for note in notes if not note.taken]
                for number in ended:
                    self._open.pop(number, None)
                if self._channel is not None and not self._lost:
                    said = {
                        "t": [(note.number, note.taken) for note in notes if note.taken],
                        "c": ended,
                        "r": [number for note in notes for number in note.released],
                    }
                    self._channel.send(Kind.NOTE, _encode(said).encode(), [], 0)
            except Closed:
                self._lost = _GONE
            finally:
                self._speaking.release()

    def _take(self, number: int, stream: _Stream) -> None:
        told = stream.taken()
        if told:
            with self._lending:
                released = self._borrower.take_released()
            self._note(_Note(number, told, released))

    # Reading

    def _wait(self, pending: PendingCall) -> None:
        with self._turn:
            while not pending.ready:
                if self._lost:
                    self._lose(self._lost)
                elif self._someone_reads or self._has_reader:
                    self._turn.wait()
                else:
                    self._someone_reads = True
                    self._turn.release()
                    try:
                        self._read_one()
                    finally:
                        self._turn.acquire()
                        self._someone_reads = False
                        self._turn.notify_all()

    def _read_forever(self) -> None:
        with self._turn:
            while self._someone_reads:
                self._turn.wait()
            self._someone_reads = True
        if self._channel is None:
            self._connect()
        while not self._lost:
            self._read_one()
            with self._turn:
                self._turn.notify_all()

    def _read_one(self) -> None:
        assert self._channel is not None
        try:
            self._hear(self._channel.receive())
        except (Closed, ProtocolViolation, ValueError, KeyError) as error:
            self._lose(_GONE if isinstance(error, Closed) else f"the server said what it never says: {error}")

    def _hear(self, frame: Frame) -> None:
        if frame.kind is not Kind.ANSWER:
            raise ProtocolViolation(f"unexpected {frame.kind.name}")
        header = _decoder.decode(str(frame.header, "utf-8"))
        if header["d"]:
            self._borrower.drop(header["d"])
        if header["r"]:
            with self._lending:
                self._lender.take_back(header["r"])
        segment: Array | None = None
        if header["s"] is not None:
            number, size, is_new = header["s"]
            assert self._channel is not None
            segment = self._borrower.borrow(number, size, self._channel.take_file() if is_new else None)
        number, final = header["n"], header["f"]
        known = self._open.get(number)
        if known is None:
            return  # given up meanwhile
        pending, stream = known
        response = _response_of(header["a"], frame.data, segment)
        if final:
            self._open.pop(number, None)
        elif stream is not None:
            stream.arrived(sum([entry[5] for entry in header["a"][3]]))
        pending.put(response, final)

    def _lose(self, why: str) -> None:
        self._lost = why
        for number in list(self._open):
            known = self._open.pop(number, None)
            if known is not None:
                known[0].put(InferenceResponse(error=TritonError(why)), True)


def _response_of(answer: Sequence[Any], data: memoryview, segment: Array | None) -> InferenceResponse:
    code, error, parameters, outputs = answer
    if code >= 0:
        return received_response([], TritonError(error, ErrorCode(code)), "{}")
    tensors = [wrap(entry[0], entry[1], read(entry, data, segment)) for entry in outputs]
    return received_response(tensors, None, parameters or "{}")


def _told(request: InferenceRequest, layout: Layout) -> list[Any]:
    """A request as the server takes it, its tensors laid out."""
    name, version = target_of(request)
    correlation_id, parameters = request.correlation_id(), request.parameters()
    return [
        speakable(name),
        version,
        speakable(request.request_id()),
        speakable(correlation_id) if isinstance(correlation_id, str) else correlation_id,
        request.flags(),
        request.timeout(),
        "" if parameters == "{}" else speakable(parameters),
        [speakable(output) for output in request.requested_output_names()],
        [layout.add(speakable(given), number, array) for given, number, array in map(storage_of, request.inputs())],
    ]
