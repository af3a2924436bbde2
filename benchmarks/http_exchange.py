"""One HTTP/1.1 request that is sent again and again, and the boundaries of its answers in a stream of bytes."""

from __future__ import annotations

import re

import msgspec

_HEAD_END = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_HEAD_BYTES_MAX = 65_536


class BadAnswer(Exception):
    """The server answered something that cannot be counted."""


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A POST request. `headers` has no Host and no Content-Length."""

    path: str
    headers: dict[str, str]
    body: bytes

    def to_bytes(self, host: str) -> bytes:
        """The request as it goes over the wire."""
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join(lines).encode("ascii") + _HEAD_END + self.body


class AnswerReader:
    """Finds where answers end, without keeping their bodies. Raises BadAnswer for a status other than 200 and for answers that do
    not say their length."""

    __slots__ = ("_head", "_missing")

    def __init__(self) -> None:
        self._head = b""
        self._missing = 0

    def feed(self, data: memoryview) -> bool:
        """Take bytes of one answer. Returns whether it is complete; bytes behind its end are a BadAnswer."""
        if self._missing:
            self._missing -= len(data)
        else:
            self._head += bytes(data)
            end = self._head.find(_HEAD_END)
            if end < 0:
                if len(self._head) > _HEAD_BYTES_MAX:
                    raise BadAnswer(f"no end of the answer's head in {_HEAD_BYTES_MAX} bytes")
                return False
            self._missing = _body_length(self._head[: end + 2]) - (len(self._head) - end - len(_HEAD_END))
            self._head = b""
        if self._missing < 0:
            raise BadAnswer(f"{-self._missing} bytes more than the answer's Content-Length")
        return self._missing == 0


def _body_length(head: bytes) -> int:
    status = _STATUS.match(head)
    if status is None or status[1] != b"200":
        raise BadAnswer(f"expected status 200, got {head.splitlines()[0].decode('latin-1')!r}")
    length = _LENGTH.search(head)
    if length is None:
        raise BadAnswer("the answer has no Content-Length")
    return int(length[1])
