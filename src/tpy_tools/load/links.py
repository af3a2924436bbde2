"""Connections to a server: sockets that never block, and the protocols on them.

A link has a number of slots. A slot has one request in flight at a time: over HTTP it is the connection, over gRPC a call of a
connection that some slots share, over a gRPC stream one stream of it.
"""

from __future__ import annotations

import base64
import re
import socket
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from tpy.limits.loading import LOAD_CONNECT_S_MAX
from tpy_tools.load.core.answers import AnswerPart, BrokenAnswer
from tpy_tools.load.core.http1 import AnswerReader, EventSplitter
from tpy_tools.load.core.http2 import GrpcConnection
from tpy_tools.load.core.tokens import TokenEvents, tokens_of

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"

_RECEIVE_BYTES = 1 << 18
_GRPC_SLOTS = 6
"""Calls that share a connection: as Triton's C++ client shares one among six of its clients."""

_FINAL = b"triton_final_response\x12\x02\x08\x01"
"""The entry of a response's parameters that says so, in Protocol Buffers."""

_OUTPUT_TAGS = frozenset({0x2A, 0x32})
"""Fields 5 and 6 of a ModelInferResponse: outputs, and their contents."""

_SUCCESS = 200
_EVENT_ERROR = re.compile(rb'(?:data: *)?\{"error"')
_FAILED = -1

_ERROR_TAG = 0x0A
"""A ModelStreamInferResponse that begins with its field 1, the error."""


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Encryption: files in PEM, those of the client also in DER. `verify`: the server's certificate; `verify_host`: that it is
    for this host."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verify: bool = True
    verify_host: bool = True
    certificate_type: str = "PEM"
    key_type: str = "PEM"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and how it is spoken to. `protocol`: http, grpc, grpc-stream (ModelStreamInfer), or sse (HTTP answers in
    pieces). `metadata` goes with each gRPC call. With `counts_tokens` answers are those of OpenAI's API."""

    host: str
    port: int
    protocol: str = "http"
    metadata: tuple[tuple[str, str], ...] = ()
    tls: Tls | None = None
    counts_tokens: bool = False

    @property
    def authority(self) -> str:
        """Host and port as headers have them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ClientConnection(Protocol):
    """One connection. Methods raise OSError and BrokenAnswer when it is lost."""

    slots: int

    def fileno(self) -> int:
        """The socket's, for poll."""
        ...

    def begin(self, slot: int, payload: bytes) -> None:
        """Send a request with the next `flush`."""
        ...

    def flush(self) -> bool:
        """Send what is to be sent. Returns False when some of it waits until the socket takes more."""
        ...

    def receive(self) -> list[tuple[int, AnswerPart]]:
        """Take what has arrived. Returns what is complete with it: slots, and their answers."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


def connect(target: Target) -> ClientConnection:
    """A new connection. Raises OSError."""
    match target.protocol:
        case "http":
            return _HttpLink(target, pieces=False)
        case "sse":
            return _HttpLink(target, pieces=True)
        case "grpc":
            return Http2Link(target, INFER)
        case "grpc-stream":
            return _StreamLink(target)
        case other:
            raise ValueError(f"unknown protocol {other!r}")


class _Socket:
    """A socket that does not block, and the bytes that it has not taken yet."""

    def __init__(self, target: Target) -> None:
        plain = socket.create_connection((target.host, target.port), timeout=LOAD_CONNECT_S_MAX)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket: socket.socket = plain
        self._tls = target.tls is not None
        if target.tls is not None:
            alpn = ["h2"] if target.protocol.startswith("grpc") else ["http/1.1"]
            self._socket = tls_context(target.tls, alpn).wrap_socket(plain, server_hostname=target.host)
        self._socket.setblocking(False)
        self._rest: bytes | memoryview = b""
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def write(self, data: bytes) -> bool:
        """Send `data` after what waits. Returns whether all has been taken."""
        waiting = (b"".join((self._rest, data)) if data else self._rest) if self._rest else data
        if not waiting:
            return True
        try:
            sent = self._socket.send(waiting)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            sent = 0
        self._rest = memoryview(waiting)[sent:] if sent < len(waiting) else b""
        return not self._rest

    def read(self) -> bytes | None:
        """Returns the bytes that have arrived; None: nothing after all; empty: the server has closed the connection."""
        try:
            data = self._receive()
            if self._tls and data:
                pieces = [data]
                while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
                    pieces.append(self._receive())
                return b"".join(pieces)
            return data
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    def _receive(self) -> bytes:
        """Into a buffer that is kept: a fresh one of this size would come from the system, and go back, with every answer."""
        return bytes(self._buffer[: self._socket.recv_into(self._buffer)])


class _HttpLink(_Socket):
    slots = 1

    def __init__(self, target: Target, *, pieces: bool) -> None:
        super().__init__(target)
        self._reader = AnswerReader(pieces=pieces)
        self._events = Events(TokenEvents() if target.counts_tokens else None) if pieces else None
        self._counts_tokens = target.counts_tokens
        self._payload = b""

    def begin(self, slot: int, payload: bytes) -> None:
        self._payload += payload

    def flush(self) -> bool:
        payload, self._payload = self._payload, b""
        return self.write(payload)

    def receive(self) -> list[tuple[int, AnswerPart]]:
        data = self.read()
        if data is None:
            return []
        if not data:
            last = self._reader.closed()
            if last:
                return [(0, answer) for answer in (self._events.of(last) if self._events else last)]
            raise BrokenAnswer("the server closed the connection" + ("" if self._reader.idle else " within an answer"))
        answers = self._reader.feed(data)
        if self._counts_tokens and not self._events:
            answers = [answer._replace(tokens=tokens_of(answer.body)) for answer in answers]
        return [(0, answer) for answer in (self._events.of(answers) if self._events else answers)]


class Events:
    """The server-sent events of a connection's answers, each an answer that is not final. One that is an error makes its request
    fail when the others are there. With `tokens` only events with tokens are answers."""

    def __init__(self, tokens: TokenEvents | None = None) -> None:
        self._splitter = EventSplitter()
        self._tokens = tokens
        self._error = b""

    def of(self, answers: Sequence[AnswerPart]) -> Iterator[AnswerPart]:
        """The events in answers, whether they came in chunks or whole."""
        for answer in answers:
            if answer.status != _SUCCESS:
                yield answer
                continue
            events = self._splitter.feed(answer.body)
            if answer.final:
                events += self._splitter.end()
            for event in events:
                if _EVENT_ERROR.match(event):
                    self._error = event.removeprefix(b"data:").strip()
                elif self._tokens is None or self._tokens.brings_tokens(event):
                    yield AnswerPart(answer.status, event, False, answer.headers)
            if answer.final:
                error, self._error = self._error, b""
                tokens = None if self._tokens is None else self._tokens.end()
                yield AnswerPart(_FAILED, error, True) if error else AnswerPart(answer.status, b"", True, answer.headers, tokens)


class Http2Link(_Socket):
    """Unary calls of one method: a call for each request."""

    slots = _GRPC_SLOTS

    def __init__(self, target: Target, path: str) -> None:
        super().__init__(target)
        scheme = "https" if target.tls else "http"
        self._machine = GrpcConnection(target.authority, path, target.metadata, scheme=scheme)
        self._slot_of: dict[int, int] = {}

    def begin(self, slot: int, payload: bytes) -> None:
        self._slot_of[self._machine.call(payload)] = slot

    def flush(self) -> bool:
        return self.write(self._machine.outgoing())

    def receive(self) -> list[tuple[int, AnswerPart]]:
        return [(self._slot_of.pop(stream), answer) for stream, answer in self._answers()]

    def _answers(self) -> list[tuple[int, AnswerPart]]:
        data = self.read()
        if data is None:
            return []
        if not data:
            raise BrokenAnswer("the server closed the connection")
        return self._machine.feed(data)


class _StreamLink(Http2Link):
    def __init__(self, target: Target) -> None:
        super().__init__(target, STREAM_INFER)
        self._stream_of: dict[int, int] = {}

    def begin(self, slot: int, payload: bytes) -> None:
        stream = self._stream_of.get(slot)
        if stream is None:
            stream = self._stream_of[slot] = self._machine.open()
            self._slot_of[stream] = slot
        self._machine.send(stream, payload)

    def receive(self) -> list[tuple[int, AnswerPart]]:
        found: list[tuple[int, AnswerPart]] = []
        for stream, answer in self._answers():
            slot = self._slot_of[stream]
            if answer.final:
                del self._slot_of[stream], self._stream_of[slot]
            found.append((slot, _stream_answer(answer)))
        return found


def _stream_answer(answer: AnswerPart) -> AnswerPart:
    """A message of a stream: the answer to a request, or a part of one."""
    if answer.final:
        return answer if answer.status else AnswerPart(2, b"the server ended the stream", True)
    body = answer.body
    if body and body[0] == _ERROR_TAG:
        return AnswerPart(2, _error_message(body), True)
    if _FINAL not in body:
        return AnswerPart(0, body, False)
    return AnswerPart(0, body if _has_outputs(body) else b"", True)


def _has_outputs(body: bytes) -> bool:
    """True if the ModelInferResponse in a ModelStreamInferResponse has outputs: with the final flag alone it is not a
    response."""
    _, at = _length_at(body, 1)  # all fields are length-delimited
    while at < len(body):
        if body[at] in _OUTPUT_TAGS:
            return True
        size, at = _length_at(body, at + 1)
        at += size
    return False


def _length_at(body: bytes, at: int) -> tuple[int, int]:
    """A length in Protocol Buffers' form. Returns it, and the place behind it."""
    size = shift = 0
    while True:
        byte = body[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, at
        shift += 7


def _error_message(body: bytes) -> bytes:
    from tpy._proto import message_class

    text: str = message_class("inference.ModelStreamInferResponse").FromString(body).error_message
    return text.encode()


def tls_context(tls: Tls, alpn: Sequence[str]) -> ssl.SSLContext:
    """The context of a client."""
    context = ssl.create_default_context(cafile=tls.ca_file or None)
    context.check_hostname = tls.verify and tls.verify_host
    context.verify_mode = ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE
    if tls.certificate_file:
        _load_certificate(context, tls)
    context.set_alpn_protocols(list(alpn))
    return context


def _load_certificate(context: ssl.SSLContext, tls: Tls) -> None:
    """The client's own, from files of either form."""
    if (tls.certificate_type, tls.key_type) == ("PEM", "PEM"):
        context.load_cert_chain(tls.certificate_file, tls.key_file or None)
        return
    with tempfile.NamedTemporaryFile(suffix=".pem") as both:
        for file, kind, label in (
            (tls.certificate_file, tls.certificate_type, "CERTIFICATE"),
            (tls.key_file, tls.key_type, "PRIVATE KEY"),
        ):
            content = Path(file).read_bytes() if file else b""
            both.write(content if kind == "PEM" or not file else _pem_of(content, label))
        both.flush()
        context.load_cert_chain(both.name)


def _pem_of(content: bytes, label: str) -> bytes:
    text = base64.encodebytes(content).decode()
    return f"-----BEGIN {label}-----\n{text}-----END {label}-----\n".encode()
