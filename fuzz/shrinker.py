"""Shrinks the tape of a history that fails to a shorter and simpler one that fails in the same way.

First whole steps are taken out, then any run of choices, then single choices are lowered; all that again until nothing helps. A
tape is simpler than another if it has fewer choices or, with as many, the first that differs is lower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from fuzz.chance import Chance, Span, Tape

SECONDS_MAX = 30.0


def play(run: Callable[[Chance], int], tape: Tape) -> Exception | None:
    """Play a tape; what it fails with."""
    try:
        run(tape)
    except Exception as error:
        return error
    return None


class Shrinker:
    """One failure. `tape` is the simplest so far that fails with an error of the same type."""

    def __init__(self, run: Callable[[Chance], int], tape: Tape, error: Exception, *, seconds_max: float = SECONDS_MAX) -> None:
        self.tape = tape
        self.error = error
        self.tries = 0
        self._run = run
        self._until = time.monotonic() + seconds_max

    def shrink(self) -> None:
        """Until nothing helps or the time is over."""
        while self._pass(self._without_steps) | self._pass(self._without_choices) | self._pass(self._lowered):
            if self._is_late():
                return

    def _pass(self, candidates: Callable[[], Iterator[list[int]]]) -> bool:
        """Try the candidates; whether one was simpler. A generator looks at the tape anew after each success."""
        helped = False
        for choices in candidates():
            if self._is_late():
                break
            helped |= self._try(choices)
        return helped

    def _try(self, choices: list[int]) -> bool:
        self.tries += 1
        tape = Tape(numbers=choices)
        error = play(self._run, tape)
        if error is None or type(error) is not type(self.error) or not _is_simpler(tape.numbers, self.tape.numbers):
            return False
        self.tape, self.error = tape, error
        return True

    def _without_steps(self) -> Iterator[list[int]]:
        size = len(self.tape.spans)
        while size:
            at = len(self.tape.spans) - size
            while True:
                if spans := [span for span in self.tape.spans[max(at, 0) : at + size] if span.end]:
                    yield self._without(spans)
                if at <= 0:
                    break
                at -= size
            size //= 2
        # The step that fails never ends: what is behind the last choice is drawn as 0, so only the count is lowered.
        for count_at in sorted({span.count_at for span in self.tape.spans}):
            if count_at < len(self.tape.numbers):
                begun = sum(span.count_at == count_at for span in self.tape.spans)
                choices = list(self.tape.numbers)
                choices[count_at] = min(choices[count_at], begun)
                yield choices

    def _without_choices(self) -> Iterator[list[int]]:
        for size in (32, 8, 4, 3, 2, 1):
            at = len(self.tape.numbers) - size
            while at >= 0:
                yield self.tape.numbers[:at] + self.tape.numbers[at + size :]
                at = min(at - 1, len(self.tape.numbers) - size)

    def _lowered(self) -> Iterator[list[int]]:
        at = 0
        while at < len(self.tape.numbers):
            number = self.tape.numbers[at]
            yield self._with(at, 0)
            low = 0  # 0 did not do, if it is still there
            while at < len(self.tape.numbers) and 0 < number == self.tape.numbers[at] and low + 1 < number:
                middle = (low + number) // 2
                yield self._with(at, middle)
                if at < len(self.tape.numbers) and self.tape.numbers[at] <= middle:
                    number = self.tape.numbers[at]
                else:
                    low = middle
            at += 1

    def _without(self, spans: list[Span]) -> list[int]:
        choices = list(self.tape.numbers)
        for span in reversed(spans):
            del choices[span.begin : span.end]
            choices[span.count_at] -= 1
        return choices

    def _with(self, at: int, number: int) -> list[int]:
        return [*self.tape.numbers[:at], number, *self.tape.numbers[at + 1 :]]

    def _is_late(self) -> bool:
        return time.monotonic() > self._until


def _is_simpler(choices: list[int], than: list[int]) -> bool:
    return (len(choices), choices) < (len(than), than)
