"""Endpoint: one end of the connection between server and worker: frames, the files that come along, and the shared memory that
tensors lie in."""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from .core.batch import Layout, Segment
from .core.frames import Buffer, FrameDecoder, FrameKind, ProtocolViolation, ReceivedFrame, encode
from .segments import Borrower, Lender, Loan, trim

NO_TENSORS = Layout()

RECEIVE_BYTES = 256 * 1024
"""One receive takes a whole frame of the largest inline size."""

IDLE_MS = 60_000
"""Without a message for so long the other end asks for nothing at present."""

_BUFFERS_MAX = 64
"""Above this many buffers one copy is cheaper than the kernel's walk (and IOV_MAX is 1024)."""

# Plain numbers: the enum members of `socket` cost microseconds in every `&`.
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_TRUNCATED = int(socket.MSG_CTRUNC)
_AT_ONCE = int(socket.MSG_DONTWAIT)

_FILES_MAX = 4
_ANCILLARY_BYTES = socket.CMSG_SPACE(_FILES_MAX * array.array("i").itemsize)


class Closed(Exception):
    """The other end is gone."""


class Unread(Closed):
    """The other end is gone, and has not read all of the frame that was sent last."""


class Foreign(Closed):
    """This process was forked from the one that the endpoint belongs to, and may not use it."""


class Endpoint:
    """Owns a socket and both directions of shared memory; `close` it. One thread at a time writes, and one reads: locks are the
    caller's affair. `lend` is for any thread."""

    def __init__(self, sock: socket.socket, *, writable: bool, process: int = 0, on_loop: bool = False) -> None:
        """`writable`: whether tensors that come may be written to. With `process`, only the process of this id may use it: what
        the model forked would otherwise send in its place, and take what is sent to it. `on_loop`: `receive_at_once` may not take
        long, so the other end frees the memory of segments that are dropped."""
        self.decoder = FrameDecoder()
        self._socket = sock
        self._process = process
        self._view = memoryview(bytearray(RECEIVE_BYTES))
        self._files: deque[int] = deque()
        self._unsent_file = -1  # of a frame that is not begun
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll_beside = select.poll()  # one object cannot be polled by two threads
        self._poll_beside.register(sock, select.POLLIN)
        self._is_waiting = False
        self._writable = writable
        self._memory = threading.RLock()  # garbage collection in the middle sends messages, with a note about memory
        self._on_loop = on_loop
        self._lender = Lender(frees_at_once=not on_loop)
        self._borrower = Borrower(writable=writable)

    def fileno(self) -> int:
        """For polling; -1 when it is closed."""
        return self._socket.fileno()

    def require_own(self) -> None:
        """Raises Foreign in a process that was forked from the endpoint's, also by code that Python's hooks know nothing of."""
        if self._process and os.getpid() != self._process:
            raise Foreign(f"the connection belongs to process {self._process}")

    # Sending

    def lend(self, layout: Layout) -> Loan | None:
        """Write a message's large tensors into shared memory; None without large tensors. Raises OSError when there is no memory,
        and what reading the tensors raises."""
        if not layout.segment_bytes:
            return None
        with self._memory:
            loan = self._lender.take(layout.segment_bytes)
        try:
            loan.write(layout.placed)
        except BaseException:
            with self._memory:
                self._lender.take_unsent(loan)
            raise
        layout.placed.clear()
        return loan

    def write(
        self,
        kind: FrameKind,
        stream: int,
        header: bytes,
        layout: Layout = NO_TENSORS,
        loan: Loan | None = None,
        *,
        wait: bool = True,
    ) -> memoryview | None:
        """Send a frame, as `send`. Raises Closed."""
        memory = b""
        if loan is not None or self.has_note:
            memory = self._note(loan)
        buffers = encode(kind, stream, header, layout.data, layout.data_bytes, memory)
        size = len(buffers[0]) if len(buffers) == 1 else len(buffers[0]) + layout.data_bytes
        try:
            return self.send(buffers, size, -1 if loan is None else loan.descriptor, wait=wait)
        finally:
            if loan is not None:
                if self._unsent_file >= 0:
                    loan.descriptor = -1
                loan.sent()

    @staticmethod
    def frame(kind: FrameKind, stream: int, header: bytes, layout: Layout) -> bytes:
        """A frame without large tensors and notes about memory."""
        return b"".join(encode(kind, stream, header, layout.data, layout.data_bytes, b""))

    def send(self, buffers: list[Buffer], size: int, file: int = -1, *, wait: bool = True) -> memoryview | None:
        """Write a frame of `size` bytes, with a file when `file` >= 0. One system call unless it is larger than the socket's
        buffer. Without `wait` only what can be written at once: the rest is returned, for `send_rest`. Raises Closed."""
        if self._process:
            self.require_own()
        if len(buffers) > _BUFFERS_MAX:
            buffers = [b"".join(buffers)]
        flags = 0 if wait else _AT_ONCE
        sent = 0
        try:
            if file < 0 and len(buffers) == 1:
                sent = self._socket.send(buffers[0], flags)
            else:
                files = [] if file < 0 else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
                sent = self._socket.sendmsg(buffers, files, flags)
            if sent == size:
                return None
            rest = memoryview(b"".join(buffers))[sent:]
            if wait:
                self._socket.sendall(rest)
                return None
        except BlockingIOError:
            rest = memoryview(b"".join(buffers))
            self._unsent_file = file
        except OSError as error:
            raise Unread(str(error)) from None
        return rest

    def send_frame(self, frame: bytes) -> memoryview | None:
        """As `send` of a whole frame without a file, for the one process that has this end: never waits."""
        try:
            sent = self._socket.send(frame, _AT_ONCE)
        except BlockingIOError:
            return memoryview(frame)
        except OSError as error:
            raise Unread(str(error)) from None
        return None if sent == len(frame) else memoryview(frame)[sent:]

    def send_rest(self, rest: memoryview) -> memoryview:
        """Write what can be written at once of the rest of frames; what is left then. Raises Closed."""
        try:
            if self._unsent_file < 0:
                return rest[self._socket.send(rest, _AT_ONCE) :]
            files = array.array("i", [self._unsent_file])
            sent = self._socket.sendmsg([rest], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)], _AT_ONCE)
            self._close_unsent_file()
            return rest[sent:]
        except BlockingIOError:
            return rest
        except OSError as error:
            raise Unread(str(error)) from None

    # Receiving

    def receive(self) -> ReceivedFrame:
        """The next frame, however long it takes; memory is given back when it takes long. Raises Closed or
        ProtocolViolation."""
        wait_ms: int | None = IDLE_MS
        while (frame := self.decoder.next_frame()) is None:
            self.require_own()
            # A thread that waits in a receive is woken by the other end's receive, too, which makes room for us to write.
            self._is_waiting = True
            arrived = self._poll.poll(wait_ms)
            self._is_waiting = False
            if not arrived:
                wait_ms = None
                self.give_memory_back()
                trim()
            self.read_at_once()
        note = self.decoder.note
        return frame if note is None else self._with_segment(frame, note)

    def is_quiet(self) -> bool:
        """Returns True while `receive` waits, and nothing has come that it would return for. Any thread."""
        return self._is_waiting and not self._poll_beside.poll(0)

    def receive_at_once(self, *, only_buffered: bool = False) -> ReceivedFrame | None:
        """The next frame if it has arrived with those before, or one read without waiting brings all of it, which is left out if
        `only_buffered`. Raises Closed or ProtocolViolation."""
        frame = self.decoder.next_frame() if self.decoder.pending else None
        if frame is None:
            if only_buffered or not self.read_at_once():
                return None
            frame = self.decoder.next_frame()
        note = self.decoder.note
        return frame if frame is None or note is None else self._with_segment(frame, note)

    def buffered(self) -> ReceivedFrame | None:
        """The next frame if it has arrived with those before. Raises ProtocolViolation."""
        return self.receive_at_once(only_buffered=True)

    def read_at_once(self) -> bool:
        """Have the decoder take what has come. False when nothing has. Raises Closed or ProtocolViolation."""
        if self._process:
            self.require_own()
        try:
            size, ancillary, flags, _ = self._socket.recvmsg_into([self._view], _ANCILLARY_BYTES, _CLOSE_ON_EXEC | _AT_ONCE)
        except BlockingIOError:
            return False
        except ConnectionResetError as error:
            # How Linux tells that the other end was closed with something in it that nobody had read.
            raise Unread(str(error)) from None
        except OSError as error:
            raise Closed(str(error)) from None
        if ancillary:
            self._keep_files(ancillary)
        if flags & _TRUNCATED or len(self._files) > _FILES_MAX:
            raise ProtocolViolation("too many files came with a message")
        if size == 0:
            raise Closed("end of stream")
        self.decoder.feed(self._view[:size])
        return True

    # Memory

    @property
    def has_note(self) -> bool:
        """True if the next message has to say something about memory."""
        return bool(self._borrower.released or self._lender.dropped)

    def lend_memory(self, memory: object) -> int:
        """Keep what the other end is shown until it returns the loan of this number, or is gone."""
        with self._memory:
            return self._lender.lend(memory)

    def lent_memory(self, loan: int) -> Any:
        """Returns what was lent by `lend_memory`; None for another number."""
        with self._memory:
            return self._lender.lent(loan)

    def forget(self, loans: Sequence[int]) -> None:
        """The other end was not shown these."""
        with self._memory:
            self._lender.forget(loans)

    @property
    def released(self) -> deque[int]:
        """Loans of the other end that nobody here looks at any more. Appending is atomic."""
        return self._borrower.released

    def release(self, loan: int) -> None:
        """Return a loan, with the next message."""
        self._borrower.released.append(loan)

    def give_memory_back(self) -> None:
        """Give the system what is kept for later messages. Any thread."""
        with self._memory:
            self._lender.give_memory_back()

    def let_go(self) -> None:
        """Nothing is sent or received any more: what was lent is unmapped, what was borrowed as soon as nobody looks at it."""
        with self._memory:
            self._borrower.close()
            self._lender = Lender(frees_at_once=not self._on_loop)
            self._borrower = Borrower(writable=self._writable)

    def _note(self, loan: Loan | None) -> bytes:
        """The text about memory: `s`, the segment of the frame (number, size, and whether its file comes along); `r`, segments of
        the other end that nobody here looks at any more; `d`, ours that it should unmap."""
        with self._memory:
            note = {
                "s": None if loan is None else [loan.number, loan.size, loan.descriptor >= 0],
                "r": self._borrower.take_released(),
                "d": self._lender.take_dropped(),
            }
        return json.dumps(note).encode()

    def _with_segment(self, frame: ReceivedFrame, note: memoryview) -> ReceivedFrame:
        return frame._replace(segment=self._take_note(note))

    def _take_note(self, memory: memoryview) -> Segment | None:
        segment, returned, dropped = _parsed(memory)
        with self._memory:
            self._borrower.drop(dropped)
            self._lender.take_back(returned)
            if segment is None:
                return None
            number, size, is_new = segment
            return self._borrower.borrow(number, size, self.take_file() if is_new else None)

    # The end

    def shut_down(self) -> None:
        """End the connection from any thread: senders and receivers get Closed."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def take_file(self) -> int:
        """The file that came with the frame just received; the caller closes it. Raises ProtocolViolation when none did."""
        if not self._files:
            raise ProtocolViolation("a segment was announced without its file")
        return self._files.popleft()

    def close(self) -> None:
        """Close the socket and files nobody took. Idempotent."""
        self._socket.close()
        self._view = memoryview(bytearray())  # whatever still refers to the endpoint does not keep its buffer
        self._close_unsent_file()
        while self._files:
            os.close(self._files.popleft())

    def _close_unsent_file(self) -> None:
        if self._unsent_file >= 0:
            os.close(self._unsent_file)
            self._unsent_file = -1

    def _keep_files(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files = array.array("i")
                files.frombytes(payload[: len(payload) - len(payload) % files.itemsize])
                self._files.extend(files)


def _parsed(memory: memoryview) -> tuple[tuple[int, int, bool] | None, list[int], list[int]]:
    """A note about memory. Raises ProtocolViolation for anything else."""
    try:
        note: dict[str, Any] = json.loads(bytes(memory))
        segment, returned, dropped = note["s"], note["r"], note["d"]
        if segment is not None:
            number, size, is_new = segment
            segment = _int(number), _int(size), bool(is_new)
        return segment, [_int(each) for each in returned], [_int(each) for each in dropped]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolViolation(f"unreadable note about memory: {type(error).__name__}: {error}") from None


def _int(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a number")
    return value
