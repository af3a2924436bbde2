"""Connection: the worker's end of the one connection to the server, for all threads of the model.

The thread that waits for something from the server reads, for all that wait, and hands every message to its handler; so a plain
batch, or a call that is waited for where it was made, costs no switch to another thread. Where something is to be received that
nobody waits for (an event loop's calls, the question whether the model is ready) `start_reader` has a separate thread read from
then on."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..pb_utils.failures import TritonModelException
from ..wire.core.batch import Array, Layout, Segment, read
from ..wire.core.datatypes import DeviceBuffer
from ..wire.core.frames import HEADER_BYTES_MAX, FrameKind, ProtocolViolation, ReceivedFrame
from ..wire.endpoint import NO_TENSORS, Closed, Endpoint, Foreign
from .device_memory import DeviceMemories

GONE = "the server is gone"

FOREIGN = "the server can be reached from the model's own process only, not from one that it has started"

JOINED_BYTES_MAX = 128 * 1024
"""Of responses that are sent together."""

TEXT_BYTES_MAX = HEADER_BYTES_MAX // 2
"""Of a header that a model has a say in."""

_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # not in its stub


def _encoder() -> Callable[[object], str]:
    """One that is not made anew for each text, as those of the json module are: 1.5 us."""
    plain = json.JSONEncoder(separators=(",", ":"), check_circular=False)
    try:
        text = json.encoder.encode_basestring_ascii
        parts = json.encoder.c_make_encoder(None, plain.default, text, None, ":", ",", False, False, True)  # type: ignore[attr-defined]  # not in its stub
        parts([0], 0)
    except (AttributeError, TypeError):  # another Python than CPython, or a newer one
        return plain.encode
    return lambda value: "".join(parts(value, 0))


encode = _encoder()


def decode(header: memoryview) -> Any:
    """A header's JSON. Raises ValueError."""
    try:
        return _scan(str(header, "utf-8"), 0)[0]  # without a look at the padding behind it
    except StopIteration:
        raise ValueError("a header that is not JSON") from None


class ServerConnection:
    """One per worker. `handlers` get the messages of each kind, in the thread that reads: they must be quick, and not wait."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.lost = ""
        """The reason why nothing comes any more."""
        self.handlers: dict[FrameKind, Callable[[ReceivedFrame], None]] = {FrameKind.REPLY: self._take_reply}
        self.on_loss: list[Callable[[], None]] = []
        """Called when the server is gone, in the thread that reads."""
        self._endpoint = endpoint
        self.devices = DeviceMemories(self._endpoint)
        self._process = os.getpid()
        self._writing = threading.Lock()
        self._writer = 0
        """The thread that has it."""
        self._posted: deque[tuple[FrameKind, int, bytes]] = deque()
        self._joins = 0
        """The thread whose responses are sent together."""
        self._joined: list[bytes] = []
        """Its frames that were not sent. Used with `_writing`, and before whatever else is sent."""
        self._joined_bytes = 0
        self._lock = threading.Lock()
        """Held for moments only, and never when something is sent."""
        self._turn = threading.Condition(self._lock)
        self._waiting = 0
        """Threads that wait while another one reads."""
        self._someone_reads = False
        self._has_reader = False
        self._questions = itertools.count(1)
        self._replies: dict[int, ReceivedFrame | None] = {}

    # Sending

    def require_own(self) -> None:
        """Raises Foreign in a process that the model has forked."""
        self._endpoint.require_own()

    def send(self, kind: FrameKind, stream: int, header: str, layout: Layout = NO_TENSORS) -> None:
        """Send a message; waits while the server is behind. Raises Closed, and OSError when there is no shared memory for the
        tensors: then nothing was sent."""
        self.require_own()  # before anything is written into memory that the server sees, or locked by a thread that is not here
        loan = None
        if layout.segment_bytes:
            loan = self._endpoint.lend(layout)
        thread = threading.get_ident()
        with self._writing:
            self._writer = thread
            try:
                if thread == self._joins and kind is FrameKind.RESPONSE and loan is None and not self._endpoint.has_note:
                    self._join(self._endpoint.frame(kind, stream, header.encode(), layout))
                else:
                    self._write_joined()
                    self._endpoint.write(kind, stream, header.encode(), layout, loan)
            finally:
                self._writer = 0
        if self._posted:
            self._flush()

    @contextlib.contextmanager
    def sending_together(self) -> Iterator[None]:
        """As `StepHost.sending_together`: one system call for all, and the server wakes up once. One thread at a time. Raises
        Closed."""
        self._joins = threading.get_ident()
        try:
            yield
        finally:
            self._joins = 0
            self._send_joined()

    def _join(self, frame: bytes) -> None:
        self._joined.append(frame)
        self._joined_bytes += len(frame)
        if self._joined_bytes > JOINED_BYTES_MAX:
            self._write_joined()

    def _send_joined(self) -> None:
        if self._joined:
            with self._writing:
                self._writer = threading.get_ident()
                try:
                    self._write_joined()
                finally:
                    self._writer = 0
            if self._posted:
                self._flush()

    def _write_joined(self) -> None:
        """Holds `_writing`."""
        if self._joined:
            frames, self._joined, self._joined_bytes = b"".join(self._joined), [], 0
            self._endpoint.send([frames], len(frames))

    def post(self, kind: FrameKind, stream: int, message: object) -> None:
        """Send a message without waiting for other threads, also in the middle of garbage collection; the thread that is sending
        sends it afterwards. Lost when the server is gone, and in a process that was forked from this one."""
        if os.getpid() == self._process:
            self._posted.append((kind, stream, encode(message).encode()))
            self._flush()

    def _flush(self) -> None:
        thread = threading.get_ident()
        while self._posted and self._writing.acquire(blocking=False):
            self._writer = thread
            try:
                self._write_joined()
                while self._posted:
                    self._endpoint.write(*self._posted.popleft())
            except Closed:
                self._posted.clear()
            finally:
                self._writer = 0
                self._writing.release()

    def notify(self, message: Mapping[str, Any], stream: int = 0) -> None:
        """Send what gets no reply, also in the middle of garbage collection. Raises TritonModelException when the server is
        gone."""
        if self._writer == threading.get_ident():
            self.post(FrameKind.NOTIFICATION, stream, message)
            return
        try:
            self.send(FrameKind.NOTIFICATION, stream, encode(message))
        except Closed as error:
            raise TritonModelException(_reason(error)) from None

    def ask(self, message: Mapping[str, Any], layout: Layout = NO_TENSORS) -> Any:
        """Send something and wait for the server's reply. Raises TritonModelException with the server's error."""
        text = encode(message)
        if len(text) > TEXT_BYTES_MAX:
            raise TritonModelException(f"{len(text)} bytes of names and texts are too long to be sent")
        number = next(self._questions)
        self._replies[number] = None
        try:
            self.send(FrameKind.QUERY, number, text, layout)
            self.wait(lambda: self._replies[number] is not None)
            reply = self._replies[number]
        except Closed as error:
            raise TritonModelException(_reason(error)) from None
        except OSError as error:
            raise TritonModelException(f"no shared memory for {layout.segment_bytes} bytes: {error}") from None
        finally:
            del self._replies[number]
        assert reply is not None
        result, failure = decode(reply.header)
        if failure:
            raise TritonModelException(failure)
        return result

    # Tensors

    def layout(self) -> Layout:
        """A new one, for tensors of the host and of devices. `Layout.forget` it if it is not sent."""
        return Layout(self.devices)

    def read(self, descriptor: Any, data: memoryview, segment: Segment | None) -> Array | DeviceBuffer:
        """The array that a descriptor names. Raises NoMemory, and TritonModelException for a device that is of no use here."""
        return self.devices.receive(descriptor) if isinstance(descriptor[3], str) else read(descriptor, data, segment)

    def _take_reply(self, message: ReceivedFrame) -> None:
        if message.stream in self._replies:
            self._replies[message.stream] = message

    # Reading

    def wait(self, ready: Callable[[], bool | int]) -> None:
        """Until `ready()` is true, which messages from the server make it. Raises Closed."""
        self._send_joined()
        while not ready():
            with self._lock:
                if ready():  # the last reader has just taken it
                    return
                if self.lost:
                    raise Closed(self.lost)
                reads = not self._someone_reads
                if reads:
                    self._someone_reads = True
                else:
                    self.require_own()
                    self._waiting += 1
                    self._turn.wait()
                    self._waiting -= 1
            if reads:
                try:
                    self._read()
                finally:
                    self._leave()

    def _leave(self) -> None:
        """Another one may read."""
        with self._lock:
            self._someone_reads = False
            if self._waiting:
                self._turn.notify_all()

    def poll(self) -> None:
        """Take what has come, unless somebody reads already."""
        with self._lock:
            if self._someone_reads or self.lost:
                return
            self._someone_reads = True
        try:
            self._read(wait=False)
        finally:
            self._leave()

    def is_quiet(self) -> bool:
        """Returns True when all that has come is handled, and the thread that reads waits. Any thread; takes a microsecond."""
        return bool(self.lost) or self._endpoint.is_quiet()

    def limit_step(self, seconds: float) -> None:
        """As `StepHost.limit_step`: the kernel sends SIGALRM, whose default is the end."""
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def start_reader(self) -> None:
        """Have a separate thread read from now on. Idempotent."""
        with self._lock:
            if not self._has_reader:
                self._has_reader = True
                threading.Thread(target=self._read_forever, name="tpy-reader", daemon=True).start()

    def close(self) -> None:
        """For this process, not for one that it was forked from."""
        self._endpoint.close()

    def _read_forever(self) -> None:
        with self._lock:
            while self._someone_reads and not self.lost:
                self._waiting += 1
                self._turn.wait()
                self._waiting -= 1
            self._someone_reads = True
        while not self.lost:
            self._read()
            with self._lock:
                self._turn.notify_all()

    def _read(self, *, wait: bool = True) -> None:
        endpoint = self._endpoint
        try:
            message = endpoint.receive() if wait else endpoint.receive_at_once()
            while message is not None:
                handler = self.handlers.get(message.kind)
                if handler is None:
                    raise ProtocolViolation(f"unexpected {message.kind.name}")
                handler(message)
                message = endpoint.buffered()
        except Foreign:
            raise
        except (Closed, ProtocolViolation, ValueError, KeyError, TypeError) as error:
            self.lost = GONE if isinstance(error, Closed) else f"the server sent what it never sends: {error}"
            for lose in self.on_loss:
                lose()


def _reason(error: Closed) -> str:
    return FOREIGN if isinstance(error, Foreign) else GONE
