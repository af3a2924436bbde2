"""Chance: where a history's choices come from, a seed or a tape.

A target draws every choice from the one `Chance` that it is given, so that its history is a function of the seed. A `Tape` keeps
each choice as a number and can be played again, whole or changed: that is what the shrinker changes and a corpus file holds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

T = TypeVar("T")

_FRACTION = 2**53
_FEW = 2**32
_ZEROS_MAX = 100_000
"""Choices behind the end of a tape. A history that wants more of them has no end."""


class Chance(random.Random):
    """Chance from a seed. `taken` counts which rules a history took."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.taken: Counter[str] = Counter()

    def rounds(self, counts: Sequence[int]) -> Iterable[int]:
        """The steps of a history, one of `counts` many. The shrinker takes out whole steps."""
        return range(self.choice(counts))

    # The numbers that histories are made of, drawn several times as fast as the standard library does; that these are not evenly
    # distributed to the last bit does not matter here.

    def choice(self, seq: SupportsLenAndGetItem[T]) -> T:
        """One of `seq`."""
        return seq[int(self.random() * len(seq))]

    def randint(self, a: int, b: int) -> int:
        """A whole number from a to b."""
        return a + self.randrange(b - a + 1)

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """A whole number below `start`, or from `start` on below `stop`."""
        if stop is not None or step != 1 or not 0 < start <= _FEW:
            return super().randrange(start, stop, step)
        return int(self.random() * start)

    def _randbelow(self, n: int) -> int:  # where the standard library draws all its other numbers from
        return int(self.random() * n) if n <= _FEW else self.getrandbits(n.bit_length() + 16) % n

    def sample(self, population: Sequence[T], k: int, *, counts: Iterable[int] | None = None) -> list[T]:
        """As random.sample, but never by drawing until another number comes: a tape may give the same one for ever."""
        pool = list(population)
        return [pool.pop(self.randrange(len(pool))) for _ in range(k)]

    def took(self, rule: str) -> None:
        """The history takes this rule."""
        self.taken[rule] += 1


@dataclass(slots=True)
class Span:
    """A step on a tape: its choices are [begin, end), and the number of steps is the choice at `count_at`."""

    count_at: int
    begin: int
    end: int


class Tape(Chance):
    """Chance that keeps its choices: each is a number from 0 on, smaller ones are simpler.

    Given `numbers`, these are played; what does not fit is cut to the largest that does, and behind the last one all are 0. Else
    they are those of the seed.
    """

    def __init__(self, *, seed: int = 0, numbers: Sequence[int] | None = None) -> None:
        self._source = Chance(seed)
        self._given = numbers
        self.numbers: list[int] = []
        self.spans: list[Span] = []
        super().__init__(seed)

    def random(self) -> float:
        return self._draw(_FRACTION, None if self._given is not None else int(self._source.random() * _FRACTION)) / _FRACTION

    def getrandbits(self, k: int, /) -> int:
        return self._draw(1 << k, None if self._given is not None else self._source.getrandbits(k))

    def choice(self, seq: SupportsLenAndGetItem[T]) -> T:
        return seq[self._randbelow(len(seq))]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return random.Random.randrange(self, start, stop, step)

    def _randbelow(self, n: int) -> int:
        return self._draw(n, None if self._given is not None else self._source._randbelow(n))

    def rounds(self, counts: Sequence[int]) -> Iterator[int]:
        count_at = len(self.numbers)
        # The number itself is kept, not its place among the counts: a shorter history has fewer steps than any of them.
        count = self._draw(max(counts) + 1, None if self._given is not None else self._source.choice(counts))
        for step in range(count):
            span = Span(count_at, len(self.numbers), 0)
            self.spans.append(span)
            yield step
            span.end = len(self.numbers)

    def _draw(self, bound: int, fresh: int | None) -> int:
        if fresh is None:
            at = len(self.numbers)
            assert self._given is not None
            fresh = min(self._given[at], bound - 1) if at < len(self._given) else 0
            if at > len(self._given) + _ZEROS_MAX:
                raise RuntimeError("a history without end")
        self.numbers.append(fresh)
        return fresh
