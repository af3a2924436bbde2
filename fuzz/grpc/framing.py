"""Messages within a stream, against a reader that sees everything at once."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.grpc.wire import cuts
from fuzz.target import Violation
from tpy.frontends.grpc.transport.core.calls import FramingFault, MessageReader

INVARIANT = (
    "however its bytes are cut, a stream is read as the messages that it is; the first that is too long or has an unknown flag"
    " is found by its prefix, and what follows it is not read"
)
_BYTES_MAX = 300


def expected(stream: bytes) -> tuple[list[tuple[bool, bytes]], str | None, bool]:
    """(messages, the status of a fault, whether the end is within a message)."""
    messages: list[tuple[bool, bytes]] = []
    at = 0
    while at + 5 <= len(stream):
        flag, length = stream[at], int.from_bytes(stream[at + 1 : at + 5], "big")
        if flag > 1:
            return messages, "INTERNAL", False
        if length > _BYTES_MAX:
            return messages, "RESOURCE_EXHAUSTED", False
        if at + 5 + length > len(stream):
            return messages, None, True
        messages.append((flag == 1, stream[at + 5 : at + 5 + length]))
        at += 5 + length
    return messages, None, at < len(stream)


def run_with(reader: MessageReader, chance: Chance) -> int:
    """One stream."""
    pieces = []
    for _ in range(chance.randrange(8)):
        body = chance.randbytes(chance.choice((0, 1, 4, 20, 299, 300, 301)))
        pieces.append(bytes((chance.choice((0, 0, 0, 1, 1, 2 if chance.random() < 0.2 else 0)),)))
        pieces.append(len(body).to_bytes(4, "big") + body)
    stream = b"".join(pieces)
    stream = stream[: len(stream) - chance.choice((0, 0, 1, 3, 10))] if stream else stream
    found: list[tuple[bool, bytes]] = []
    fault = None
    for piece in cuts(chance, stream):
        try:
            found += [(compressed, bytes(body)) for compressed, body in reader.feed(memoryview(piece))]
        except FramingFault as error:
            fault = error.status.name
            break
    messages, expected_fault, within = expected(stream)
    if fault != expected_fault:
        raise Violation(f"the fault is {fault}, expected {expected_fault}")
    if fault is None and found != messages:
        raise Violation(f"{len(found)} messages, expected {len(messages)}")
    if fault is not None and found != messages[: len(found)]:
        raise Violation("other messages before the fault")
    if fault is None and reader.is_within_message is not within:
        raise Violation(f"is_within_message is {reader.is_within_message}, expected {within}")
    return len(messages)


def run(chance: Chance) -> int:
    """One stream, read by our reader."""
    return run_with(MessageReader(_BYTES_MAX), chance)


class ForgetfulReader(MessageReader):
    """Wrong on purpose: it forgets a prefix that was cut."""

    def feed(self, data: memoryview) -> list[tuple[bool, memoryview]]:
        messages = super().feed(data)
        self._prefix = b""
        return messages


def run_canary(chance: Chance) -> int:
    """One stream, read wrongly."""
    return run_with(ForgetfulReader(_BYTES_MAX), chance)
