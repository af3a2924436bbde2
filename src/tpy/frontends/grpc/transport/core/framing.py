"""Messages within a stream: a flag, four bytes of length, the message (gRPC over HTTP/2, "Length-Prefixed-Message")."""

from __future__ import annotations

from grpclib.const import Status

PREFIX_BYTES = 5

Message = tuple[bool, memoryview]
"""(whether it is compressed, its bytes)."""


class FramingFault(Exception):
    """The bytes of a stream are not messages, or too long ones. The call ends with `status`."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def prefix(length: int, *, compressed: bool) -> bytes:
    """Returns the prefix of a message."""
    return (b"\1" if compressed else b"\0") + length.to_bytes(4, "big")


def whole_message(data: memoryview, bytes_max: int) -> memoryview | None:
    """The message in `data` if that is one, not compressed and no longer than allowed, and nothing else; else None: read it with
    a MessageReader."""
    size = len(data) - PREFIX_BYTES
    if not 0 <= size <= bytes_max or data[:PREFIX_BYTES] != b"\0" + size.to_bytes(4, "big"):
        return None
    return data[PREFIX_BYTES:]


class MessageReader:
    """Cuts what arrives into messages. A message that comes in one piece is a view on that piece; one that comes in several is
    copied once, into a buffer that grows with what has arrived, never with what was announced."""

    __slots__ = ("_body", "_body_length", "_bytes_max", "_compressed", "_prefix")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._prefix = b""
        self._body: bytearray | None = None
        self._body_length = 0
        self._compressed = False

    @property
    def is_within_message(self) -> bool:
        """True if a message has begun that is not complete."""
        return self._body is not None or bool(self._prefix)

    def feed(self, data: memoryview) -> list[Message]:
        """The messages that `data` completes. Raises FramingFault; the reader is of no use then."""
        return self.cut(data, len(data))[0]

    def cut(self, data: memoryview, count_max: int) -> tuple[list[Message], int]:
        """The messages that `data` completes, `count_max` at most, and how many of its bytes are taken. Raises as `feed`."""
        messages: list[Message] = []
        at, end = 0, len(data)
        while at < end and len(messages) < count_max:
            body = self._body
            if body is None:
                taken = self._prefix + data[at : at + PREFIX_BYTES - len(self._prefix)]
                at += len(taken) - len(self._prefix)
                if len(taken) < PREFIX_BYTES:
                    self._prefix = taken
                    break
                self._prefix = b""
                length = self._begin(taken)
                if end - at >= length:
                    messages.append((self._compressed, data[at : at + length]))
                    at += length
                    continue
                self._body_length = length
                body = self._body = bytearray()
            piece = data[at : at + self._body_length - len(body)]
            try:
                body += piece
            except MemoryError:
                raise FramingFault(Status.UNAVAILABLE, "the server has no memory for this message") from None
            at += len(piece)
            if len(body) == self._body_length:
                messages.append((self._compressed, memoryview(body)))
                self._body = None
        return messages, at

    def _begin(self, taken: bytes) -> int:
        flag = taken[0]
        if flag > 1:
            raise FramingFault(Status.INTERNAL, f"a message begins with the flag {flag}, expected 0 or 1 (compressed)")
        length = int.from_bytes(taken[1:], "big")
        if length > self._bytes_max:
            raise FramingFault(Status.RESOURCE_EXHAUSTED, f"Received message larger than max ({length} vs. {self._bytes_max})")
        self._compressed = flag == 1
        return length
