"""HTTP/1.1 requests out of bytes, on llhttp (httptools) in its strict mode. No socket, clock or task in here.

`feed` bytes in any pieces; complete requests collect in `complete`. A large body with a Content-Length, and one behind a head
that the codec has read, goes past llhttp: while `bulk` is set, the next bytes of the connection belong there and are reported by
`bulk_received`. When HTTP leaves no way to find the next request, `fatal` is the answer to give before closing, and nothing more
may be fed.

What llhttp refuses by itself: Content-Length together with Transfer-Encoding, or twice, or not a number; folded headers; line
ends without CR; spaces before the colon; control characters. Refused here: sizes, versions, codings, a missing Host.

A head that comes alone, whole, and in the standard form is read by the native codec, where that runs, and llhttp never sees it,
nor its body: it is between requests then, before and after.
"""

from __future__ import annotations

import enum
import functools
from collections import deque
from collections.abc import Mapping
from http import HTTPStatus

import httptools
import msgspec
import numpy as np

from tpy import limits
from tpy.echo import echo
from tpy.errors import ErrorCode
from tpy.frontends.core.budget import ByteBudget
from tpy.frontends.http.message import HttpReply, HttpRequest, Refuse, fields_of, inference_of, refusal_reply, split_target
from tpy.hot.codec import Head, read_head
from tpy.refusals import TOO_LARGE

_TARGETS_MAX = 256
"""Of the last requests, what their targets mean is kept."""

_SMALL_BODY_BYTES_MAX = 64 * 1024
"""Bodies up to this size are kept as the pieces that llhttp gives; larger ones have one buffer from the start, and so have those
behind a head that llhttp has not seen."""

_ALIGNMENT = 64
"""Of the first binary tensor in such a buffer. What ONNX Runtime wants of memory that it uses without copying it."""

_LENGTH_DIGITS_MAX = 20
"""Digits of a length that can be true."""


class ParserPhase(enum.Enum):
    """The part of a request in which the bytes fed so far end."""

    IDLE = "between requests"
    HEAD = "in the request line or headers"
    BODY = "in the body"


class _Collect(enum.Enum):
    """The treatment of body bytes."""

    PIECES = enum.auto()
    SMALL = enum.auto()  # past llhttp, as the large ones in a buffer
    BUFFER = enum.auto()
    GROWING = enum.auto()
    DISCARD = enum.auto()


class _Stop(Exception):
    """Ends llhttp's run after `fatal` was set."""


BODIES_FULL = "the server holds as many bytes of request bodies as it may at the same time, try again later"


class RequestParser:
    """One connection's requests. Their large bodies count in `bodies`; one that has no room there is thrown away and refused.
    `refuse` makes the refusals."""

    def __init__(
        self,
        *,
        max_input_size: int,
        bodies: ByteBudget | None = None,
        refuse: Refuse = refusal_reply,
    ) -> None:
        self.complete: deque[HttpRequest] = deque()
        self.phase = ParserPhase.IDLE
        self.begun = 0
        """Requests whose first byte was seen."""
        self.body_received: int
        """Bytes of the present body."""
        self.bulk: memoryview | None = None
        """The memory for the next bytes of the connection, while a body arrives that goes past llhttp."""
        self.fatal: HttpReply | None = None
        self.expects_continue = False
        """The present request's sender waits for an interim answer before it sends its body."""
        self.ended = False
        """The last request asked for the connection to be closed; what follows it is ignored."""
        self._max_input_size = max_input_size
        self._standard_body_max = min(_SMALL_BODY_BYTES_MAX, max_input_size)
        self._refuse = refuse
        self._bodies = bodies or ByteBudget(max(limits.REQUEST_BODIES_BYTES_MAX, max_input_size))
        self._llhttp = httptools.HttpRequestParser(self)
        self._replaying = False
        self._upgrade_with_body = False
        self._empty_line_bytes = 0
        self._reset()

    def _reset(self) -> None:
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._request: HttpRequest | None = None
        self._collect = _Collect.PIECES
        self._pieces: list[bytes] = []
        self._buffer = memoryview(b"")
        self._growing = bytearray()
        self._content_length: int | None = None
        self._chunks: int | None = None
        self._raw_bytes = 0
        self._held = 0
        self.body_received = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes of the connection (not while `bulk` is set)."""
        before, size, was_idle = self.begun, len(data), self.phase is ParserPhase.IDLE
        if was_idle and self.fatal is None and not self.ended and not self._empty_line_bytes:
            head = read_head(data, self._standard_body_max)
            if head is not None:
                self._take_standard(head)
                return
        while data and self.fatal is None and not self.ended:
            rest: bytes | memoryview = b""
            try:
                self._llhttp.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # An offer to change the protocol (h2c, websocket), which we never take up.
                rest = memoryview(data)[upgrade.args[0] :]
                self._continue_after_upgrade()
            except httptools.HttpParserError as error:
                self._explain(error)
            data = rest
        # The piece in which a request begins does not count: it may begin with the end of others, and is no longer than one read.
        self._count_raw(size if self.begun == before else 0)
        if was_idle and self.phase is ParserPhase.IDLE and self.begun == before and self.fatal is None:
            self._count_empty_lines(size)
        if self.phase is ParserPhase.BODY and self._collect is _Collect.BUFFER and self.fatal is None:
            self.bulk = self._buffer[self.body_received :]

    def _take_standard(self, head: Head) -> None:
        """A request whose head llhttp does not see."""
        method, target, headers, fields, keep_alive, length, body = head
        path, inference = _meaning_of(method, target)
        request = HttpRequest(
            method=method,
            target=target,
            path=path,
            version="1.1",
            headers=headers,
            fields=fields,
            keep_alive=keep_alive,
            body=body,
            inference=inference,
        )
        self.begun += 1
        if len(body) == length:
            self.ended = not keep_alive
            self.complete.append(request)
            return
        self.phase, self._request, self._collect = ParserPhase.BODY, request, _Collect.SMALL
        self._content_length, self.body_received = length, len(body)
        self._buffer = _untouched(length)
        self._buffer[: len(body)] = body
        self.bulk = self._buffer[len(body) :]

    def bulk_received(self, count: int) -> None:
        """`count` bytes were written to the beginning of `bulk`."""
        if self.bulk is None or count > len(self.bulk):
            raise ValueError("more bytes than the body has")
        self.body_received += count
        if self._collect is _Collect.SMALL or (self._collect is _Collect.BUFFER and self._hold(count)):
            self.bulk = self.bulk[count:]
        else:
            missing = (self._content_length or 0) - self.body_received
            self.bulk = memoryview(bytearray(min(missing, limits.HTTP_RECEIVE_BYTES_MAX)))  # nobody reads it
        if not self.bulk:
            self.bulk = None
            if self._collect is not _Collect.SMALL:  # llhttp still waits for this body
                self._llhttp = httptools.HttpRequestParser(self)
            self.on_message_complete()

    def drop(self) -> None:
        """The connection is over: let go of the bodies. Connection and parser refer to each other in circles, which stay until
        the garbage collector comes by."""
        self._bodies.give(self._held + sum(request.held_bytes for request in self.complete))
        self.complete.clear()
        self.bulk = None
        self._reset()

    def _hold(self, count: int) -> bool:
        """Count bytes of the present body in the budget. False: there is no room, and the body is thrown away."""
        if self._bodies.take(count):
            self._held += count
            return True
        self._throw_away()
        return False

    def _throw_away(self) -> None:
        """Refuse the present request, for which there is no room."""
        self._bodies.give(self._held)
        self._held = 0
        self._collect = _Collect.DISCARD
        self._buffer = memoryview(b"")
        self._growing = bytearray()
        if self._request is not None:
            self._request.refusal = _bodies_full(self._refuse)

    def _explain(self, error: httptools.HttpParserError) -> None:
        if self.fatal is not None or self.ended:
            return
        if isinstance(error, httptools.HttpParserCallbackError):
            raise error  # a bug of ours
        self.fatal = self._refuse(HTTPStatus.BAD_REQUEST, f"malformed HTTP request: {error}")

    def _fail(self, status: HTTPStatus, text: str) -> None:
        self.fatal = self._refuse(status, text)
        raise _Stop

    def _count_raw(self, count: int) -> None:
        """Bound what llhttp holds or skips without telling us: half headers, chunk extensions."""
        if self.fatal is not None or self.ended:
            return
        self._raw_bytes += count
        if self.phase is ParserPhase.HEAD and self._raw_bytes > limits.HTTP_HEADER_BYTES_MAX:
            self.fatal = _head_too_large(self._refuse)
        elif self.phase is ParserPhase.BODY and self._chunks is not None:
            allowed = limits.HTTP_HEADER_BYTES_MAX + limits.HTTP_CHUNK_OVERHEAD_BYTES_MAX * self._chunks
            if self._raw_bytes - self.body_received > allowed:
                self.fatal = self._refuse(HTTPStatus.BAD_REQUEST, "malformed HTTP request: chunk headers are too long")

    def _count_empty_lines(self, count: int) -> None:
        """Bound what llhttp passes over before a request."""
        self._empty_line_bytes += count
        if self._empty_line_bytes > limits.HTTP_HEADER_BYTES_MAX:
            self.fatal = _head_too_large(self._refuse)

    def _continue_after_upgrade(self) -> None:
        """llhttp leaves the body of a request with an Upgrade header to the new protocol: start it again at the body."""
        if not self._upgrade_with_body:
            return
        self._upgrade_with_body = False
        framing = b"Transfer-Encoding: chunked" if self._content_length is None else b"Content-Length: %d" % self._content_length
        self._llhttp = httptools.HttpRequestParser(self)
        self._replaying = True
        self._llhttp.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self._replaying = False

    # llhttp's callbacks

    def on_message_begin(self) -> None:
        if self.ended:
            raise _Stop  # llhttp sees this by itself, but not after an offer to change the protocol
        if not self._replaying:
            self._raw_bytes = self._empty_line_bytes = 0
            self.begun += 1
            self.phase = ParserPhase.HEAD

    def on_url(self, piece: bytes) -> None:
        if not self._replaying:
            self._target += piece
            self._count_head(len(piece))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._replaying:
            return
        self._count_head(len(name) + len(value) + 4)
        if self.phase is ParserPhase.HEAD:  # trailers are counted and dropped
            self._headers.append((name, value.strip(b" \t")))

    def _count_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > limits.HTTP_HEADER_BYTES_MAX:
            self.fatal = _head_too_large(self._refuse)
            raise _Stop

    def on_headers_complete(self) -> None:
        if self._replaying:
            return
        llhttp = self._llhttp
        version = llhttp.get_http_version()
        if version not in ("1.1", "1.0"):
            self._fail(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, f"HTTP version {version} is not supported, expected 1.1 or 1.0")
        target, path = split_target(self._target)
        fields = fields_of(self._headers)
        method = llhttp.get_method()
        request = HttpRequest(
            method=method,
            target=target,
            path=path,
            version=version,
            headers=self._headers,
            fields=fields,
            keep_alive=llhttp.should_keep_alive(),
            inference=inference_of(method, target, path),
        )
        self._request = request
        self.phase = ParserPhase.BODY
        self.expects_continue = False
        if request.method == b"CONNECT":
            request.keep_alive = False
        self._choose_framing(request)
        if version == "1.1" and (b"host" not in fields or sum(name.lower() == b"host" for name, _ in self._headers) > 1):
            request.refusal = self._refuse(HTTPStatus.BAD_REQUEST, "malformed HTTP request: exactly one Host header is required")
        if b"expect" in fields and version == "1.1":
            self._expect(request, fields[b"expect"])
            if request.refusal is not None:
                # The sender waits for our word before it sends the body: there will be none, and no next request.
                self.fatal = request.refusal
                raise _Stop
        self._upgrade_with_body = llhttp.should_upgrade() and (self._chunks is not None or bool(self._content_length))

    def _choose_framing(self, request: HttpRequest) -> None:
        fields = request.fields
        coding = fields.get(b"transfer-encoding")
        if coding is not None:
            if request.version != "1.1":
                self._fail(HTTPStatus.BAD_REQUEST, "malformed HTTP request: HTTP/1.0 has no Transfer-Encoding")
            if coding.lower() != b"chunked":
                self._fail(HTTPStatus.NOT_IMPLEMENTED, f"Transfer-Encoding '{echo(coding.decode('latin-1'))}' is not supported")
            self._chunks = 0
            self._collect = _Collect.GROWING
            return
        length = int(fields.get(b"content-length", b"0"))
        self._content_length = length
        if length > self._max_input_size:
            self._oversized(request, length)
        elif length > _SMALL_BODY_BYTES_MAX:
            try:
                self._buffer = _aligned_buffer(length, fields.get(b"inference-header-content-length", b""))
            except MemoryError:
                self._throw_away()
            else:
                self._collect = _Collect.BUFFER

    def _oversized(self, request: HttpRequest, size: int) -> None:
        refusal = too_large(self._refuse, size, self._max_input_size, request.fields)
        if size > limits.HTTP_DISCARDED_BODY_BYTES_MAX or b"expect" in request.fields:
            self.fatal = refusal
            raise _Stop
        request.refusal = refusal
        self._collect = _Collect.DISCARD

    def _expect(self, request: HttpRequest, expectation: bytes) -> None:
        if expectation.lower() == b"100-continue":
            self.expects_continue = True
        else:
            text = f"expectation '{echo(expectation.decode('latin-1'))}' is not supported"
            request.refusal = self._refuse(HTTPStatus.EXPECTATION_FAILED, text)

    def on_chunk_header(self) -> None:
        if self._chunks is not None:
            self._chunks += 1

    def on_body(self, piece: bytes) -> None:
        if (
            self._chunks is not None and self._chunks > limits.HTTP_CHUNKS_MAX
        ):  # here, because the last chunk, which is empty, does not count
            text = f"Chunked request body exceeds maximum of {limits.HTTP_CHUNKS_MAX} non-empty chunks."
            self._fail(HTTPStatus.BAD_REQUEST, f"{text} Send fewer or larger HTTP chunks.")
        at = self.body_received
        self.body_received += len(piece)
        match self._collect:
            case _Collect.PIECES:
                self._pieces.append(piece)
            case _Collect.BUFFER:
                if self._hold(len(piece)):
                    self._buffer[at : self.body_received] = piece
            case _Collect.GROWING if self._hold(len(piece)):
                try:
                    self._growing += piece
                except MemoryError:
                    self._throw_away()
                if self.body_received > self._max_input_size:
                    fields = self._request.fields if self._request is not None else {}
                    self.fatal = too_large(self._refuse, self.body_received, self._max_input_size, fields)
                    raise _Stop
            case _:
                pass

    def on_message_complete(self) -> None:
        request = self._request
        if request is None or self._upgrade_with_body:
            return
        match self._collect:
            case _Collect.PIECES:
                request.body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            case _Collect.SMALL:
                request.body = bytes(self._buffer)
            case _Collect.BUFFER:
                request.body = self._buffer
            case _Collect.GROWING:
                request.body = self._growing
            case _Collect.DISCARD:
                pass
        request.held_bytes = self._held
        self.complete.append(request)
        self.ended = not request.keep_alive
        self.expects_continue = False
        self.phase = ParserPhase.IDLE
        self._reset()


@functools.lru_cache(_TARGETS_MAX)
def _meaning_of(method: bytes, target: bytes) -> tuple[str, tuple[str, str | None] | None]:
    """The path of a target without escapes, and the model and version that a request for inference is for."""
    path = split_target(target)[1]
    return path, inference_of(method, target, path)


def _aligned_buffer(length: int, header_length: bytes) -> memoryview:
    """Memory for a body, as `_untouched`, in which what follows its inference header begins at a multiple of _ALIGNMENT bytes.

    `header_length` is that header's length as the sender says; an invalid length is refused elsewhere.
    """
    offset = int(header_length) if header_length.isdigit() and len(header_length) <= _LENGTH_DIGITS_MAX else 0
    buffer = np.empty(length + _ALIGNMENT, dtype=np.uint8)
    start = -(buffer.ctypes.data + offset) % _ALIGNMENT
    return buffer.data[start : start + length]


def _untouched(length: int) -> memoryview:
    """Memory for a body. numpy, because it does not touch it: a promise costs nothing until the bytes arrive."""
    return np.empty(length, dtype=np.uint8).data


def _head_too_large(refuse: Refuse) -> HttpReply:
    text = f"request line and headers exceed {limits.HTTP_HEADER_BYTES_MAX} bytes"
    return refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)


def _bodies_full(refuse: Refuse) -> HttpReply:
    """The refusal of a body for which there is no room beside those of others."""
    return msgspec.structs.replace(refuse(HTTPStatus.SERVICE_UNAVAILABLE, BODIES_FULL), counted_as=ErrorCode.UNAVAILABLE.name)


def too_large(refuse: Refuse, size: int, limit: int, fields: Mapping[bytes, bytes]) -> HttpReply:
    """The refusal of a body of `size` bytes that came with these header fields: of a raw one in other words, as in Triton."""
    raw = fields.get(b"inference-header-content-length") == b"0"
    what, bound = ("binary", "value") if raw else ("JSON", "input size")
    reply = refuse(
        HTTPStatus.BAD_REQUEST,
        f"request {what} size of {size} bytes exceeds the maximum allowed {bound} of {limit} bytes. "
        "Use --http-max-input-size to increase the limit.",
    )
    return msgspec.structs.replace(reply, counted_as=TOO_LARGE)
