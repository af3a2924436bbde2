"""From tokens to text, as they come: whole characters only, and nothing of what may become a stop string. Pure but for the
tokenizer that is handed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

_UNFINISHED: Final = "\ufffd"
"""A character that is cut in two, as a tokenizer writes it."""


class TextOfTokens:
    """The text of one sequence. Tokens are decoded together with those before them, since a tokenizer may write the first one of
    a text in another way."""

    __slots__ = ("_decode", "_from", "_stops", "_tokens", "_upto", "_waiting", "is_stopped", "keeps_stop")

    def __init__(self, decode: Callable[[list[int]], str], stops: Sequence[str] = (), *, keeps_stop: bool = False) -> None:
        """`keeps_stop`: the stop string is a part of the text."""
        self._decode = decode
        self._stops = stops
        self.keeps_stop = keeps_stop
        self._tokens: list[int] = []
        self._from = 0
        """The first of the tokens that are decoded to compare."""
        self._upto = 0
        """The number of tokens already written."""
        self._waiting = ""
        """Text that may be the beginning of a stop string."""
        self.is_stopped = False

    def add(self, tokens: Sequence[int], *, is_last: bool = False) -> str:
        """Returns the text to send now; with `is_last` all that is left."""
        if self.is_stopped:
            return ""
        self._tokens.extend(tokens)
        before, now = [self._decode(part) for part in self.parts()]
        text = ""
        if len(now) > len(before) and (is_last or not now.endswith(_UNFINISHED)):
            text = now[len(before) :]
            self._from, self._upto = self._upto, len(self._tokens)
        return self._stop(text, is_last=is_last) if self._stops else text

    def parts(self, tokens: Sequence[int] = ()) -> tuple[list[int], list[int]]:
        """The tokens whose texts `add` compares, when it is given these: known before, so that several texts may be decoded
        together."""
        return self._tokens[self._from : self._upto], [*self._tokens[self._from :], *tokens]

    def _stop(self, text: str, *, is_last: bool) -> str:
        text = self._waiting + text
        self._waiting = ""
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            place, stop = min(places)
            self.is_stopped = True
            return text[: place + len(stop)] if self.keeps_stop else text[:place]
        if is_last:
            return text
        kept = max([_overlap(text, stop) for stop in self._stops])
        self._waiting = text[len(text) - kept :]
        return text[: len(text) - kept]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that the stop string begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
