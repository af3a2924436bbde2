"""Endpoint: one end of the connection between server and worker: frames, with the shared memory that their tensors lie in."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from .channel import Channel
from .core.batch import Layout, Segment
from .core.frames import Frame, Kind, ProtocolViolation, encode
from .segments import Borrower, Lender, Loan

NO_TENSORS = Layout()


class Endpoint:
    """Owns a channel and both directions of shared memory. One thread at a time writes, and one reads; `lend` is for any."""

    def __init__(self, channel: Channel, *, writable: bool) -> None:
        """`writable`: whether tensors that come may be written to."""
        self.channel = channel
        self.decoder = channel.decoder
        self._writable = writable
        self._memory = threading.RLock()  # garbage collection in the middle sends messages, with a note about memory
        self._lender = Lender()
        self._borrower = Borrower(writable=writable)

    def lend(self, layout: Layout) -> Loan | None:
        """Write a message's large tensors into shared memory; None when it has none. Raises OSError when there is no memory, and
        what those raise that are read for it."""
        if not layout.segment_bytes:
            return None
        with self._memory:
            loan = self._lender.take(layout.segment_bytes)
        try:
            loan.write(layout.placed)
        except BaseException:
            with self._memory:
                self._lender.take_unsent(loan)
            raise
        layout.placed.clear()
        return loan

    def write(
        self, kind: Kind, stream: int, header: bytes, layout: Layout = NO_TENSORS, loan: Loan | None = None, *, wait: bool = True
    ) -> memoryview | None:
        """Send a frame, as `Channel.send`. Raises Closed."""
        memory = b""
        if loan is not None or self.has_note:
            memory = self._note(loan)
        buffers = encode(kind, stream, header, layout.data, layout.data_bytes, memory)
        size = len(buffers[0]) if len(buffers) == 1 else len(buffers[0]) + layout.data_bytes
        try:
            return self.channel.send(buffers, size, -1 if loan is None else loan.descriptor, wait=wait)
        finally:
            if loan is not None:
                if self.channel.has_unsent_file:
                    loan.descriptor = -1
                loan.sent()

    @property
    def has_note(self) -> bool:
        """True if the next message has to say something about memory."""
        return bool(self._borrower.released or self._lender.dropped)

    def lend_memory(self, memory: object) -> int:
        """Keep what the other end is shown until it returns the loan of this number, or is gone."""
        with self._memory:
            return self._lender.lend(memory)

    def lent_memory(self, loan: int) -> Any:
        """Returns what was lent by `lend_memory`; None for another number."""
        with self._memory:
            return self._lender.lent(loan)

    def forget(self, loans: Sequence[int]) -> None:
        """The other end was not shown these."""
        with self._memory:
            self._lender.forget(loans)

    @property
    def released(self) -> deque[int]:
        """Loans of the other end that nobody here looks at any more. Appending is atomic."""
        return self._borrower.released

    def release(self, loan: int) -> None:
        """Return a loan, with the next message."""
        self._borrower.released.append(loan)

    def receive(self) -> Frame:
        """The next frame, however long it takes. Raises Closed or ProtocolViolation."""
        return self._complete(self.channel.receive())

    def receive_at_once(self, *, only_buffered: bool = False) -> Frame | None:
        """The next frame if it has arrived with those before, or one read without waiting brings all of it, which is left out if
        `only_buffered`. Raises Closed or ProtocolViolation."""
        frame = self.decoder.next_frame() if self.decoder.pending else None
        if frame is None:
            if only_buffered or not self.channel.read_at_once():
                return None
            frame = self.decoder.next_frame()
        return frame if frame is None or self.decoder.note is None else self._complete(frame)

    def buffered(self) -> Frame | None:
        """The next frame if it has arrived with those before. Raises ProtocolViolation."""
        return self.receive_at_once(only_buffered=True)

    def let_go(self) -> None:
        """Nothing is sent or received any more: what was lent is unmapped, what was borrowed as soon as nobody looks at it."""
        with self._memory:
            self._borrower.close()
            self._lender, self._borrower = Lender(), Borrower(writable=self._writable)

    def _note(self, loan: Loan | None) -> bytes:
        with self._memory:
            note = {
                "s": None if loan is None else [loan.number, loan.size, loan.descriptor >= 0],
                "r": self._borrower.take_released(),
                "d": self._lender.take_dropped(),
            }
        return json.dumps(note).encode()

    def _complete(self, frame: Frame) -> Frame:
        note = self.decoder.note
        return frame if note is None else frame._replace(segment=self._take_note(note))

    def _take_note(self, memory: memoryview) -> Segment | None:
        segment, returned, dropped = _parsed(memory)
        with self._memory:
            self._borrower.drop(dropped)
            self._lender.take_back(returned)
            if segment is None:
                return None
            number, size, is_new = segment
            return self._borrower.borrow(number, size, self.channel.take_file() if is_new else None)


def _parsed(memory: memoryview) -> tuple[tuple[int, int, bool] | None, list[int], list[int]]:
    """A note about memory. Raises ProtocolViolation for anything else."""
    try:
        note: dict[str, Any] = json.loads(bytes(memory))
        segment, returned, dropped = note["s"], note["r"], note["d"]
        if segment is not None:
            number, size, is_new = segment
            segment = _int(number), _int(size), bool(is_new)
        return segment, [_int(each) for each in returned], [_int(each) for each in dropped]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolViolation(f"unreadable note about memory: {type(error).__name__}: {error}") from None


def _int(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no number")
    return value
