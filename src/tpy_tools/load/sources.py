"""Sources of requests: the data in turn, or sequences of them."""

from __future__ import annotations

from collections.abc import Sequence

from tpy_tools.load.calls import SequencePlace, Template


class InTurn:
    """The requests one after another, from the `first` on, for ever."""

    def __init__(self, templates: Sequence[Template], first: int = 0) -> None:
        self._payloads = [template.fill() for template in templates]
        self._next = first % len(templates)

    def take(self, slot: int) -> tuple[int, bytes]:
        number = self._next
        self._next = number + 1 if number + 1 < len(self._payloads) else 0
        return number, self._payloads[number]


class SequenceLengths:
    """The lengths of random sequences: `length`, more or less by `variation` percent. `uniform` gives numbers from 0 to 1."""

    def __init__(self, length: int, variation: float, uniform: Sequence[float]) -> None:
        self._length = length
        self._variation = variation / 100
        self._uniform = uniform
        self._next = 0

    def take(self) -> int:
        """The next one, at least 1."""
        share = self._uniform[self._next % len(self._uniform)] * 2 - 1
        self._next += 1
        return max(1, round(self._length * (1 + share * self._variation)))


class SequenceSource:
    """Every slot sends sequences, one after another: the requests of one of the `streams` of data each, in order.

    `lengths` None: as long as the stream. Numbers of sequences are `first_id`, `first_id + step` and so
    on, and begin again at `ids_end`.
    """

    def __init__(
        self,
        streams: Sequence[Sequence[tuple[int, Template]]],
        *,
        lengths: SequenceLengths | None,
        first_id: int,
        step: int = 1,
        ids_end: int = 2**63 - 1,
    ) -> None:
        self._streams = streams
        self._lengths = lengths
        self._first_id = self._next_id = first_id
        self._step = step
        self._ids_end = ids_end
        self._next_stream = 0
        self._running: dict[int, _Running] = {}
        self.latest: dict[int, int] = {}
        """The sequence of the latest request of each slot."""

    def take(self, slot: int) -> tuple[int, bytes]:
        running = self._running.get(slot)
        if running is None:
            running = self._running[slot] = self._start()
        call, template = running.stream[running.sent % len(running.stream)]
        running.sent += 1
        self.latest[slot] = running.number
        last = running.sent >= running.length
        if last:
            del self._running[slot]
        return call, template.fill(SequencePlace(running.number, running.sent == 1, last))

    def _start(self) -> _Running:
        stream = self._streams[self._next_stream % len(self._streams)]
        self._next_stream += 1
        number = self._next_id
        self._next_id = number + self._step
        if self._next_id >= self._ids_end:
            self._next_id = self._first_id
        return _Running(number, stream, len(stream) if self._lengths is None else self._lengths.take())


class _Running:
    """A sequence that is being sent."""

    __slots__ = ("length", "number", "sent", "stream")

    def __init__(self, number: int, stream: Sequence[tuple[int, Template]], length: int) -> None:
        self.number = number
        self.stream = stream
        self.length = length
        self.sent = 0
