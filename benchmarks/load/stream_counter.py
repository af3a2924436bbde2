"""A gRPC client that counts the responses of ModelStreamInfer, as lean as Python can: frames are counted, not decoded.

    python -m benchmarks.load.stream_counter PORT MODEL RESPONSES STREAMS SECONDS

Each stream asks the model for RESPONSES responses, and again when it has them. Prints how many responses came, and in how long.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

import hpack
import numpy as np

from tpy._proto import message_class

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = 1
_WINDOW = (1 << 31) - 1
_WINDOW_DEFAULT = 65_535
_CREDIT_BYTES = 1 << 24
"""Connection window given back in lots of so much."""

_READ_BYTES = 1 << 20
_PREFIX_BYTES = 5
_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
_HEADER = struct.Struct(">I")


class StreamFailed(Exception):
    """The server ended a stream, or sent what is no response."""


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload))[1:] + bytes((kind, flags)) + _HEADER.pack(stream) + payload


class Counter:
    """One connection with several streams."""

    def __init__(self, port: int, model: str, responses: int, streams: int) -> None:
        message = message_class("inference.ModelInferRequest")(model_name=model)
        message.inputs.add(name="COUNT", datatype="INT32", shape=[1])
        message.raw_input_contents.append(np.array([responses], np.int32).tobytes())
        body = message.SerializeToString()
        self._ask = b"\0" + _HEADER.pack(len(body)) + body
        self._responses = responses
        self._left = {2 * number + 1: responses for number in range(streams)}
        self._partial = dict.fromkeys(self._left, b"")
        self._pending = b""
        self._taken = 0
        self._socket = socket.create_connection(("127.0.0.1", port))
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", _PATH),
            (":authority", "benchmark"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        encoder = hpack.Encoder()
        opening = [
            _PREFACE,
            _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, _WINDOW)),
            _frame(_WINDOW_UPDATE, 0, 0, _HEADER.pack(_WINDOW - _WINDOW_DEFAULT)),
        ]
        for stream in self._left:
            opening.append(_frame(_HEADERS, 4, stream, encoder.encode(headers)))
            opening.append(_frame(_DATA, 0, stream, self._ask))
        self._socket.sendall(b"".join(opening))

    def count(self, seconds: float) -> tuple[int, float]:
        """How many responses came, and in how many seconds."""
        began = time.monotonic()
        responses = 0
        while (elapsed := time.monotonic() - began) < seconds:
            responses += self._read()
        return responses, elapsed

    def _read(self) -> int:
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
                self._control(kind, flags, data[at + 9 : end])
            at = end
        self._pending = data[at:]
        if self._taken > _CREDIT_BYTES:
            credit = _frame(_WINDOW_UPDATE, 0, 0, _HEADER.pack(self._taken))
            self._socket.sendall(credit + b"".join(_frame(_WINDOW_UPDATE, 0, each, _HEADER.pack(1 << 20)) for each in self._left))
            self._taken = 0
        return responses

    def _take(self, stream: int, payload: bytes) -> int:
        """Responses in a stream's data."""
        data = self._partial[stream] + payload
        at = found = 0
        while len(data) - at >= _PREFIX_BYTES:
            end = at + _PREFIX_BYTES + int.from_bytes(data[at + 1 : at + 5], "big")
            if end > len(data):
                break
            at = end
            found += 1
        self._partial[stream] = data[at:]
        self._left[stream] -= found
        if self._left[stream] <= 0:
            self._left[stream] += self._responses
            self._socket.sendall(_frame(_DATA, 0, stream, self._ask))
        return found

    def _control(self, kind: int, flags: int, payload: bytes) -> None:
        if kind in (_RESET, _GOAWAY):
            raise StreamFailed(f"the server ended a stream: frame {kind}, {payload!r}")
        if kind == _SETTINGS and not flags & _ACK:
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, payload))


def main(port: int, model: str, responses: int, streams: int, seconds: float) -> None:
    """Warm up for a fifth of the time, then count."""
    counter = Counter(port, model, responses, streams)
    counter.count(seconds / 5)
    count, elapsed = counter.count(seconds)
    print(f"{count} responses in {elapsed:.3f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
