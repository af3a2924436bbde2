"""Single requests as they went, for --profile-export-file: when each was sent, when its responses came, and what they were."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tpy.limits.loading import LOAD_BODIES_BYTES_MAX, LOAD_RECORDS_KEPT_MAX
from tpy_tools.load.core.answers import AnswerPart
from tpy_tools.load.driving import Slot

_HEADER = "inference-header-content-length"
NO_BODY = -1


class ReceivedResponse(msgspec.Struct, frozen=True, array_like=True):
    """A response: when it came, and which of the batch's bodies it has; -1: it was not kept."""

    at_ns: int
    body: int


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A request that was answered without an error. `call`: the number of its data; `sequence` 0: it is in none."""

    call: int
    sent_ns: int
    responses: list[ReceivedResponse]
    sequence: int = 0


class Body(msgspec.Struct, frozen=True, array_like=True):
    """A response's content; over HTTP with the length of its JSON part, -1: all of it."""

    content: bytes
    json_bytes: int = -1


class RecordBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that ended since the batch before. `left_out`: those beyond the bound."""

    records: list[Record] = []
    bodies: list[Body] = []
    left_out: int = 0


class Records:
    """Takes note of requests. Bodies that are the same are kept once in a batch."""

    def __init__(self, sequence_of: Callable[[int], int]) -> None:
        self._sequence_of = sequence_of
        self._under_way: dict[int, list[tuple[int, AnswerPart]]] = {}
        self._room = LOAD_RECORDS_KEPT_MAX
        self._begin()

    def _begin(self) -> None:
        self._records: list[Record] = []
        self._bodies: list[Body] = []
        self._numbers: dict[bytes, int] = {}
        self._room_bytes = LOAD_BODIES_BYTES_MAX
        self._left_out = 0

    def responded(self, slot: Slot, answer: AnswerPart, now_ns: int) -> None:
        """A response that others follow."""
        if self._room > 0:
            self._under_way.setdefault(slot.number, []).append((now_ns, answer))

    def finished(self, slot: Slot, answer: AnswerPart, now_ns: int, *, is_response: bool) -> None:
        """The last one, or the end without one."""
        came = self._under_way.pop(slot.number, [])
        if self._room <= 0:
            self._left_out += 1
            return
        self._room -= 1
        if is_response:
            came.append((now_ns, answer))
        responses = [ReceivedResponse(at_ns, self._number_of(each)) for at_ns, each in came]
        self._records.append(Record(slot.call, slot.begun_ns, responses, self._sequence_of(slot.number)))

    def failed(self, slot: Slot) -> None:
        """The request ended with an error."""
        self._under_way.pop(slot.number, None)

    def take(self) -> RecordBatch:
        """Returns what there is since the last time."""
        batch = RecordBatch(records=self._records, bodies=self._bodies, left_out=self._left_out)
        self._begin()
        return batch

    def _number_of(self, answer: AnswerPart) -> int:
        number = self._numbers.get(answer.body)
        if number is None:
            if len(answer.body) > self._room_bytes:
                return NO_BODY
            self._room_bytes -= len(answer.body)
            number = self._numbers[answer.body] = len(self._bodies)
            length = answer.headers.get(_HEADER, "")
            self._bodies.append(Body(answer.body, int(length) if length.isdecimal() else -1))
        return number
