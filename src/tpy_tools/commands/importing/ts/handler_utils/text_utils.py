"""Words of a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

_SPACED = re.compile(r"(['.,()!?])")


def get_tokenizer(tokenizer: str | Callable[[str], list[str]] | None, language: str = "en") -> Callable[[str], list[str]]:
    """The function that cuts a text into words: at spaces (None), or lower-case, with punctuation apart ("basic_english")."""
    if tokenizer is None:
        return str.split
    if callable(tokenizer):
        return tokenizer
    if tokenizer == "basic_english" and language == "en":
        return _basic_english
    raise ValueError(f"no tokenizer '{tokenizer}' for language '{language}': expected None, 'basic_english' or a function")


def _basic_english(line: str) -> list[str]:
    line = re.sub(r"<br />|[;:]", " ", line.lower().replace('"', ""))
    return _SPACED.sub(r" \1 ", line).split()


def ngrams_iterator(token_list: Sequence[str], ngrams: int) -> Iterator[str]:
    """The words, then all pairs of neighbours, and so on up to `ngrams` of them, joined by spaces."""
    yield from token_list
    for length in range(2, ngrams + 1):
        for begin in range(len(token_list) - length + 1):
            yield " ".join(token_list[begin : begin + length])
