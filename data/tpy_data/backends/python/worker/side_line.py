"""The side line: a second socket between worker and server, for what must not wait for a batch, nor a batch for it.

Metrics, answers that come after their batch, and the question whether the model is ready. To the server, a message is one packet:
a u32 with the length of its JSON header, the header, then data. Sending one is atomic, so any thread may, also in the middle of
garbage collection. The server reads at all times; what it says is JSON alone.
"""

from __future__ import annotations

import array
import itertools
import json
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from .failures import TritonModelException

PACKET_BYTES_MAX = 192 * 1024
"""Fits the socket's buffer (212,992 bytes). What is larger goes through a file of its own."""

HEADER_BYTES_MAX = 56 * 1024
"""Of a packet; data may have INLINE_TOTAL_BYTES_MAX."""

GONE = "the server is gone"

FOREIGN = "the server can be reached from the model's own process only, not from one that it has started"

_LENGTH = struct.Struct("<I")
_ANCILLARY_BYTES = socket.CMSG_SPACE(array.array("i").itemsize)
_encode = json.JSONEncoder(separators=(",", ":")).encode

Message = dict[str, Any]


class SideLine:
    """The worker's end. Its thread is started when first something is expected from the server."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._process = os.getpid()
        self._calls = itertools.count()
        self._asked: dict[int, queue.SimpleQueue[Message]] = {}
        self._handlers: dict[str, Callable[[Message], None]] = {}
        self._starting = threading.Lock()
        self._reads = False

    def tell(self, message: Message, data: bytes = b"", file: int = -1) -> None:
        """Send a message. Waits while the server is behind. Raises TritonModelException when it is gone, and in a process
        that was forked from this one."""
        self._require_own()
        header = _encode(message).encode("utf-8", "replace")
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))] if file >= 0 else []
        packet = b"".join((_LENGTH.pack(len(header)), header, data))
        if len(packet) > PACKET_BYTES_MAX:
            raise TritonModelException(f"a message of {len(packet)} bytes to the server is longer than {PACKET_BYTES_MAX}")
        try:
            self._socket.sendmsg([packet], ancillary)
        except OSError:
            raise TritonModelException(GONE) from None

    def ask(self, message: Message) -> Any:
        """Send a message and wait for what the server says to it. Raises TritonModelException with the server's error."""
        self._require_own()
        self._start()
        call = next(self._calls)
        waiting: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._asked[call] = waiting
        try:
            self.tell({**message, "call": call})
            if not self._reads:
                raise TritonModelException(GONE)
            answer = waiting.get()
        finally:
            self._asked.pop(call, None)
        if answer["error"]:
            raise TritonModelException(answer["error"])
        return answer["result"]

    def listen(self, kind: str, handler: Callable[[Message], None]) -> None:
        """Have messages of this kind handled, in the line's thread: it must be quick."""
        self._handlers[kind] = handler
        self._start()

    def close(self) -> None:
        """For this process, not for one that it was forked from."""
        self._socket.close()

    def _require_own(self) -> None:
        if os.getpid() != self._process:
            raise TritonModelException(FOREIGN)

    def _start(self) -> None:
        with self._starting:
            if not self._reads:
                self._reads = True
                threading.Thread(target=self._read, name="tpy-side-line", daemon=True).start()

    def _read(self) -> None:
        try:
            while packet := self._socket.recv(PACKET_BYTES_MAX):
                message = json.loads(packet)
                if message["type"] == "reply":
                    waiting = self._asked.get(message["call"])
                    if waiting is not None:
                        waiting.put(message)
                elif (handler := self._handlers.get(message["type"])) is not None:
                    handler(message)
        except OSError:
            pass
        self._reads = False
        for waiting in list(self._asked.values()):
            waiting.put({"error": GONE, "result": None})


def written_file(parts: list[tuple[int, Any]], size: int) -> int:
    """A sealed anonymous file of `size` bytes with these parts at their offsets; the caller closes it. Raises OSError."""
    import fcntl

    from .segments import F_ADD_SEALS, F_SEAL_SHRINK

    descriptor = os.memfd_create("tpy-answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK)
        for offset, data in parts:
            view = memoryview(data)
            while view:
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
