"""The socket: frames out and in, files along with them. Blocking; a lock is the caller's affair."""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
from collections import deque

from .core.frames import Buffer, Frame, FrameDecoder, Kind, ProtocolViolation, encode

RECEIVE_BYTES = 256 * 1024
"""One receive takes a whole frame of the largest inline size."""

_BUFFERS_MAX = 64
"""Above this many buffers one copy is cheaper than the kernel's walk (and IOV_MAX is 1024)."""

_JOINED_BYTES_MAX = 8 * 1024
"""Up to so much data one copy and a plain send are cheaper: 5 us for a tiny frame, where several buffers take 7."""

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


class Stalled(Exception):
    """The socket's receive timeout passed and nothing came; the call may be repeated."""


class Channel:
    """One end of the socket pair. `close` it. With `process`, only the process of this id may use it: what the model forked would
    otherwise speak for it, and take what is said to it."""

    def __init__(self, sock: socket.socket, *, process: int = 0) -> None:
        self._socket = sock
        self._process = process
        self._decoder = FrameDecoder()
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._files: deque[int] = deque()

    def fileno(self) -> int:
        """For polling."""
        return self._socket.fileno()

    def require_own(self) -> None:
        """Raises Foreign in a process that was forked from the channel's, also by code that Python's hooks know nothing of."""
        if self._process and os.getpid() != self._process:
            raise Foreign(f"the channel belongs to process {self._process}")

    def send(self, kind: Kind, header: bytes, data: list[Buffer], data_bytes: int, file: int = -1, number: int = 0) -> None:
        """Write one frame, with a file when `file` >= 0. One system call unless the frame is larger than the socket's buffer.

        Blocks while the peer does not read: a peer of ours always does when it may be spoken to. Raises Closed.
        """
        self.require_own()
        buffers = encode(kind, header, data, data_bytes, number)
        if len(buffers) > _BUFFERS_MAX or data_bytes <= _JOINED_BYTES_MAX:
            buffers = [b"".join(buffers)]
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))] if file >= 0 else []
        try:
            sent = self._socket.sendmsg(buffers, ancillary) if len(buffers) > 1 or ancillary else self._socket.send(buffers[0])
            if sent < sum(map(len, buffers)):
                self._socket.sendall(memoryview(b"".join(buffers))[sent:])
        except OSError as error:
            raise Unread(str(error)) from None

    def send_at_once(self, kind: Kind, header: bytes, data: list[Buffer], data_bytes: int, number: int = 0) -> memoryview:
        """Write as much of a frame as can be written without waiting; what is left, for `send_rest`. Raises Closed."""
        joined = memoryview(b"".join(encode(kind, header, data, data_bytes, number)))
        try:
            return joined[self._socket.send(joined, _AT_ONCE) :]
        except BlockingIOError:
            return joined
        except OSError as error:
            raise Unread(str(error)) from None

    def send_rest(self, rest: memoryview) -> None:
        """Write the rest of a frame, before anything else is. Blocks as `send` does. Raises Closed."""
        try:
            self._socket.sendall(rest)
        except OSError as error:
            raise Unread(str(error)) from None

    def receive(self) -> Frame:
        """The next frame. Raises Closed, Stalled (on a socket with a receive timeout) or ProtocolViolation."""
        while (frame := self._decoder.next_frame()) is None:
            if not self._read(_CLOSE_ON_EXEC):
                raise Stalled
        return frame

    def receive_at_once(self) -> Frame | None:
        """The next frame, or None: one read without waiting was not enough. Raises Closed or ProtocolViolation."""
        frame = self._decoder.next_frame()
        if frame is None and self._read(_CLOSE_ON_EXEC | _AT_ONCE):
            frame = self._decoder.next_frame()
        return frame

    def _read(self, how: int) -> bool:
        """False when nothing has come."""
        self.require_own()
        try:
            size, ancillary, flags, _ = self._socket.recvmsg_into([self._view], _ANCILLARY_BYTES, how)
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
        self._decoder.feed(self._view[:size])
        return True

    def buffered(self) -> Frame | None:
        """A frame that has arrived already, behind the one received last. Raises ProtocolViolation."""
        return self._decoder.next_frame()

    def shut_down(self) -> None:
        """End the talk from any thread: whoever sends or receives gets Closed."""
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
        while self._files:
            os.close(self._files.popleft())

    def _keep_files(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files = array.array("i")
                files.frombytes(payload[: len(payload) - len(payload) % files.itemsize])
                self._files.extend(files)


def wait_readable(channel: Channel, timeout_s: float | None) -> bool:
    """Whether something can be received within `timeout_s` seconds (None: for ever)."""
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else max(0, timeout_s) * 1000))
