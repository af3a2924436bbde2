"""The socket: frames out and in, files along with them. A lock is the caller's affair."""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
from collections import deque

from .core.frames import Buffer, Frame, FrameDecoder, ProtocolViolation

RECEIVE_BYTES = 256 * 1024
"""One receive takes a whole frame of the largest inline size."""

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
    """This process was forked from the one that the channel belongs to, and may not use it."""


class Channel:
    """One end of the socket pair. `close` it. With `process`, only the process of this id may use it: what the model forked would
    otherwise send in its place, and take what is sent to it."""

    def __init__(self, sock: socket.socket, *, process: int = 0) -> None:
        self.decoder = FrameDecoder()
        self._socket = sock
        self._process = process
        self._view = memoryview(bytearray(RECEIVE_BYTES))
        self._files: deque[int] = deque()
        self._unsent_file = -1
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def fileno(self) -> int:
        """For polling; -1 when it is closed."""
        return self._socket.fileno()

    def require_own(self) -> None:
        """Raises Foreign in a process that was forked from the channel's, also by code that Python's hooks know nothing of."""
        if self._process and os.getpid() != self._process:
            raise Foreign(f"the channel belongs to process {self._process}")

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

    @property
    def has_unsent_file(self) -> bool:
        """True when nothing of a frame could be sent: its file goes with the rest, and is the channel's until then."""
        return self._unsent_file >= 0

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

    def receive(self) -> Frame:
        """The next frame, however long it takes. Raises Closed or ProtocolViolation."""
        while (frame := self.decoder.next_frame()) is None:
            self.require_own()
            # A thread that waits in a receive is woken by the other end's receive, too, which makes room for us to write.
            self._poll.poll()
            self.read_at_once()
        return frame

    def receive_at_once(self) -> Frame | None:
        """The next frame, or None: one read without waiting was not enough. Raises Closed or ProtocolViolation."""
        frame = self.decoder.next_frame()
        if frame is None and self.read_at_once():
            frame = self.decoder.next_frame()
        return frame

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
        self._view = memoryview(bytearray())  # whatever still refers to the channel does not keep its buffer
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
