"""A gRPC client for ModelStreamInfer, as lean as Python can: HTTP/2 frames and messages are told apart, and not decoded.

One connection with some streams. What to send, and when, is the subclass's business. It keeps to the server's flow control:
what does not fit into a window waits here until there is room again.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque

import hpack

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
HEADER = struct.Struct(">I")
PREFIX_BYTES = 5

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = 1
_INITIAL_WINDOW = 4
_WINDOW = (1 << 31) - 1
_WINDOW_DEFAULT = 65_535
_CREDIT_BYTES = 1 << 24
"""Connection window given back in lots of so much."""

_READ_BYTES = 1 << 20
_STALL_S = 60.0


class StreamFailed(Exception):
    """The server ended a stream, or sent something that is not a response."""


def framed(message: bytes) -> bytes:
    """A message as gRPC sends it, uncompressed."""
    return b"\0" + HEADER.pack(len(message)) + message


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload))[1:] + bytes((kind, flags)) + HEADER.pack(stream) + payload


class StreamClient:
    """One connection with `streams` open calls. `ask` and `flush` send, `read` receives; each message goes to `answered`."""

    def __init__(self, port: int, streams: int) -> None:
        self.streams = tuple(2 * number + 1 for number in range(streams))
        self._partial = dict.fromkeys(self.streams, b"")
        self._pending = b""
        self._taken = 0
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._room = _WINDOW_DEFAULT
        self._stream_room = dict.fromkeys(self.streams, _WINDOW_DEFAULT)
        self._initial_window = _WINDOW_DEFAULT
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_STALL_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", PATH),
            (":authority", "benchmark"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        encoder = hpack.Encoder()
        opening = [
            _PREFACE,
            _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, _WINDOW)),
            _frame(_WINDOW_UPDATE, 0, 0, HEADER.pack(_WINDOW - _WINDOW_DEFAULT)),
            *(_frame(_HEADERS, 4, stream, encoder.encode(headers)) for stream in self.streams),
        ]
        self._socket.sendall(b"".join(opening))

    def close(self) -> None:
        """End the connection, and with it the calls."""
        self._socket.close()

    def answered(self, stream: int, message: memoryview) -> None:
        """A whole message has come. For subclasses."""
        raise NotImplementedError

    def ask(self, stream: int, request: bytes) -> None:
        """Send a framed request with the next `flush`."""
        self._waiting.append((stream, request))

    def flush(self) -> None:
        """Send what waits and fits into the windows, in one piece, in order."""
        ready = []
        while self._waiting:
            stream, request = self._waiting[0]
            if len(request) > min(self._room, self._stream_room[stream]):
                break
            self._waiting.popleft()
            self._room -= len(request)
            self._stream_room[stream] -= len(request)
            ready.append(_frame(_DATA, 0, stream, request))
        if ready:
            self._socket.sendall(b"".join(ready))

    def count(self, seconds: float) -> tuple[int, float]:
        """The number of responses, and the seconds that they took."""
        began = time.monotonic()
        responses = 0
        while (elapsed := time.monotonic() - began) < seconds:
            responses += self.read()
        return responses, elapsed

    def read(self) -> int:
        """Wait for bytes, take them, and send what this gave rise to. Returns how many messages were completed."""
        chunk = self._socket.recv(_READ_BYTES)
        if not chunk:
            raise StreamFailed("the server closed the connection")
        data = self._pending + chunk
        at = responses = 0
        while len(data) - at >= 9:
            size = int.from_bytes(data[at : at + 3], "big")
            end = at + 9 + size
            if end > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9], "big")
            if kind == _DATA:
                responses += self._take(stream, data[at + 9 : end])
                self._taken += size
            else:
                self._control(kind, flags, stream, data[at + 9 : end])
            at = end
        self._pending = data[at:]
        self.flush()
        if self._taken > _CREDIT_BYTES:
            credit = _frame(_WINDOW_UPDATE, 0, 0, HEADER.pack(self._taken))
            more = (_frame(_WINDOW_UPDATE, 0, each, HEADER.pack(1 << 20)) for each in self.streams)
            self._socket.sendall(credit + b"".join(more))
            self._taken = 0
        return responses

    def _take(self, stream: int, payload: bytes) -> int:
        """Messages in a stream's data."""
        data = self._partial[stream] + payload if self._partial[stream] else payload
        view = memoryview(data)
        at = found = 0
        while len(data) - at >= PREFIX_BYTES:
            end = at + PREFIX_BYTES + int.from_bytes(data[at + 1 : at + 5], "big")
            if end > len(data):
                break
            self.answered(stream, view[at + PREFIX_BYTES : end])
            at = end
            found += 1
        self._partial[stream] = data[at:]
        return found

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (_RESET, _GOAWAY):
            raise StreamFailed(f"the server ended a stream: frame {kind}, {payload!r}")
        if kind == _HEADERS and flags & 1:
            raise StreamFailed(f"the server ended stream {stream}: {hpack.Decoder().decode(payload)}")
        if kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == _INITIAL_WINDOW:
                    more, self._initial_window = value - self._initial_window, value
                    self._stream_room = {each: room + more for each, room in self._stream_room.items()}
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE:
            room = HEADER.unpack(payload)[0] & _WINDOW
            if stream:
                self._stream_room[stream] += room
            else:
                self._room += room
