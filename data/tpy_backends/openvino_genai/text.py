"""From tokens to text, as they come: whole characters only, and nothing of what may become a stop string. Pure but for the
tokenizer that is handed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

_UNFINISHED: Final = "\ufffd"
"""A character that is cut in two, as a tokenizer writes it."""

_SAMPLES: Final = 256
_SAMPLE_TOKENS: Final = 6

_SAMPLE_TEXT: Final = "I do n't know . Yes , it 's we 've they 're fine !  Is it ?\n\tTwo  spaces, 1,000.5 (a-b) \"x\" é 漢字"
"""With what a tokenizer may write in another way than token by token: spaces before punctuation, two of them, bytes."""


class TokenTexts:
    """The text of a token behind another one, and as the first, where it depends on nothing else.

    To decode is an inference of OpenVINO's, which takes some 250 us, more than all else between two steps of an engine with one
    sequence. It is needed for parts of a character, and for a special token at the beginning.
    """

    __slots__ = ("_behind", "_first")

    def __init__(
        self,
        decode_all: Callable[[list[list[int]]], list[str]],
        encode: Callable[[str], list[int]],
        vocabulary: int,
        show_all: Callable[[list[list[int]]], list[str]],
    ) -> None:
        """Decodes the `vocabulary` tokens at once, and then some texts both ways. Of a tokenizer for which they differ, or which
        does not know all these tokens, nothing is known. `show_all` decodes special tokens as well, which `decode_all` leaves
        out."""
        self._first: Sequence[str | None] = ()
        self._behind: list[str | None] = []
        if not vocabulary:
            return
        try:
            anchor = encode("a")[-1]
            before, *behind = decode_all([[anchor], *[[anchor, token] for token in range(vocabulary)]])
            alone = [[token] for token in range(vocabulary)]
            first, shown = decode_all(alone), show_all(alone)
            special = {token for token in range(vocabulary) if not first[token] and _whole(shown[token])}
            random = Random(0)
            samples = [[random.randrange(vocabulary) for _ in range(_SAMPLE_TOKENS)] for _ in range(_SAMPLES)]
            samples += [encode(_SAMPLE_TEXT), *[[anchor, token, anchor] for token in special]]
            texts = decode_all(samples)
        except (RuntimeError, ValueError, IndexError):  # ValueError: a part of a character has no text in Python
            return
        self._first = [_whole(text) for text in first]
        self._behind = [_whole(text[len(before) :]) if text.startswith(before) else None for text in behind]
        for token in special:
            self._behind[token] = ""
        if any(self.text_of(each) not in (None, text) for each, text in zip(samples, texts, strict=True)):
            self._first, self._behind = (), []

    def text_of(self, tokens: Sequence[int]) -> str | None:
        """The text of these tokens; None: they have to be decoded together."""
        if not tokens:
            return ""
        try:
            texts = [self._first[tokens[0]], *[self._behind[token] for token in tokens[1:]]]
        except IndexError:
            return None
        return None if None in texts else "".join(filter(None, texts))


def _whole(text: str) -> str | None:
    return None if not text or _UNFINISHED in text else text


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
