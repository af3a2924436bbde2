"""A language model small enough to read: which words follow which two, counted in the prose of Python's own documentation."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from pydoc_data.topics import topics

WORD = re.compile(r"[(\"]*[\w'’./-]+[)\"]*[.,;:]*")


def sentences() -> list[list[str]]:
    """The words of each paragraph that is prose, once."""
    paragraphs = {tuple(text.split()) for topic in topics.values() for text in re.split(r"\n\s*\n", topic)}
    prose = [words for words in sorted(paragraphs) if len(words) > 5 and words[-1].endswith(".")]
    return [[word.replace('"', "") for word in words] for words in prose if all(WORD.fullmatch(word) for word in words)]


def count() -> dict[str, dict[str, int]]:
    """Two words, with a space between -> each word that follows them -> how often. Before the first word are two empty ones."""
    following: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for words in sentences():
        for first, second, third in zip(["", "", *words], ["", *words], words, strict=False):
            following[f"{first} {second}"][third] += 1
    return {pair: dict(counter) for pair, counter in following.items()}


def write(repository: Path) -> None:
    """The counts, beside the model that reads them."""
    (repository / "words" / "1" / "following.json").write_text(json.dumps(count()), encoding="utf-8")
