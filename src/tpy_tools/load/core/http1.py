"""HTTP/1.1 as a client speaks it on one connection: one request, its answer, the next request."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from tpy.limits import loading as limits
from tpy_tools.load.core.answers import AnswerPart, BrokenAnswer

_HEAD_END = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


def encode_request(method: str, path: str, host: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """A request as it goes over the wire."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + _HEAD_END + body


class Head:
    """The head of an answer. `length` None: the body is chunked, or ends with the connection (`chunked` False)."""

    __slots__ = ("chunked", "headers", "length", "status")

    def __init__(self, text: bytes) -> None:
        first, *lines = text.split(b"\r\n")
        status = _STATUS.match(first)
        if status is None:
            raise BrokenAnswer(f"expected an answer of HTTP/1.1, got {first[:80]!r}")
        self.status = int(status[1])
        self.headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            self.headers[name.decode("latin-1").strip().lower()] = value.decode("latin-1").strip()
        length = self.headers.get("content-length")
        if length is not None and not length.isdecimal():
            raise BrokenAnswer(f"the answer's Content-Length is {length[:40]!r}")
        self.chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        self.length = None if self.chunked else int(length) if length is not None else 0 if self.status in (204, 304) else None


class AnswerReader:
    """The answers in the bytes of one connection. `pieces`: parts of a chunked body are separate answers that are not final, as
    they arrive; otherwise an answer is given when it is whole."""

    def __init__(self, *, pieces: bool = False) -> None:
        self._heads: dict[bytes, Head] = {}
        self._pieces = pieces
        self._kept = b""
        self._parts: list[bytes] = []
        self._missing = 0.0
        """Bytes without which nothing more is complete; infinite in a body that ends with the connection."""
        self._head: Head | None = None
        self._chunks: list[bytes] = []

    def feed(self, data: bytes) -> list[AnswerPart]:
        """Take bytes. Returns what is complete with them. Raises BrokenAnswer."""
        if self._missing:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = self._take_parts()
        elif self._kept:
            data = self._kept + data
            self._kept = b""
        found: list[AnswerPart] = []
        while data:
            head = self._head
            if head is None:
                end = data.find(_HEAD_END)
                if end < 0:
                    if len(data) > limits.LOAD_HEAD_BYTES_MAX:
                        raise BrokenAnswer(f"no end of an answer's head in {limits.LOAD_HEAD_BYTES_MAX} bytes")
                    self._kept = data
                    break
                head = self._heads.get(data[:end]) or self._read_head(data[:end])
                if head.length is not None and len(data) == end + 4 + head.length:  # as nearly all of them are
                    found.append(AnswerPart(head.status, data[end + 4 :], True, head.headers))
                    break
                data = data[end + 4 :]
                if 100 <= head.status < 200:
                    continue
                self._head = head
            rest = self._read_body(head, data, found)
            if rest is None:
                break
            data = rest
        return found

    def closed(self) -> list[AnswerPart]:
        """The connection has ended. Returns the answer that ends with it, if there is one."""
        head = self._head
        if head is None or head.chunked or head.length is not None:
            return []
        self._head = None
        return [AnswerPart(head.status, self._take_parts(), True, head.headers)]

    @property
    def idle(self) -> bool:
        """True between two answers."""
        return self._head is None and not self._kept

    def _wait(self, data: bytes, missing: float) -> None:
        """Keep `data` until `missing` bytes have followed: a large body is put together once, not with each piece of it."""
        self._parts, self._missing = [data], missing

    def _take_parts(self) -> bytes:
        parts, self._parts, self._missing = self._parts, [], 0.0
        return b"".join(parts)

    def _read_head(self, text: bytes) -> Head:
        head = Head(text)
        if len(self._heads) < limits.LOAD_HEADS_REMEMBERED_MAX:
            self._heads[text] = head
        return head

    def _read_body(self, head: Head, data: bytes, found: list[AnswerPart]) -> bytes | None:
        """Read on in a body. Returns what is behind it, None when it is not complete."""
        if head.chunked:
            return self._read_chunks(head, data, found)
        if head.length is None:
            self._wait(data, math.inf)
            return None
        if len(data) < head.length:
            self._wait(data, head.length - len(data))
            return None
        self._head = None
        found.append(AnswerPart(head.status, data[: head.length], True, head.headers))
        return data[head.length :]

    def _read_chunks(self, head: Head, data: bytes, found: list[AnswerPart]) -> bytes | None:
        while True:
            end = data.find(b"\r\n")
            if end < 0:
                break
            size = _chunk_size(data[:end])
            if not size:
                trailers = data.find(_HEAD_END, end - 2 if end >= 2 else 0) if data[end : end + 4] != _HEAD_END else end
                if trailers < 0:
                    break
                self._head = None
                found.append(AnswerPart(head.status, b"".join(self._chunks), True, head.headers))
                self._chunks = []
                return data[trailers + 4 :]
            if len(data) < end + 4 + size:
                self._wait(data, end + 4 + size - len(data))
                return None
            chunk = data[end + 2 : end + 2 + size]
            if self._pieces and head.status == 200:
                found.append(AnswerPart(head.status, chunk, False, head.headers))
            else:
                self._chunks.append(chunk)
            data = data[end + 4 + size :]
        self._kept = data
        return None


class EventSplitter:
    """Server-sent events in the bytes of a body, each without the empty line behind it. OpenAI's [DONE] does not count."""

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes. Returns the events that are complete with them."""
        *events, self._kept = (self._kept + data).replace(b"\r\n", b"\n").split(b"\n\n")
        return [event for event in events if event.strip() and event.strip() != b"data: [DONE]"]

    def end(self) -> list[bytes]:
        """The body has ended. Returns an event that has no empty line behind it."""
        return self.feed(b"\n\n") if self._kept else []


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise BrokenAnswer(f"expected the size of a chunk, got {line[:40]!r}") from None
