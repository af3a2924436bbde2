"""English contractions and what they stand for, as TorchServe's text handlers know them: networks were trained with these."""

from __future__ import annotations

from collections.abc import Iterator


def _regular() -> Iterator[tuple[str, str]]:
    for ending, meaning, words in (
        ("n't", " not", "are could did does do had has have is may might must need ought should was were would"),
        ("'d", " would", "he i it she that there they we you"),
        ("'d", " did", "how where"),
        ("'ll", " will", "he how i it she they we what who you"),
        ("'m", " am", "i"),
        ("'re", " are", "they we what you"),
        ("'ve", " have", "could i might must should so they to we what when where who why will would you"),
        ("'s", " is", "he how it she that there what when where who why"),
    ):
        for word in words.split():
            yield word + ending, word + meaning


CONTRACTION_MAP = {
    **dict(_regular()),
    "'cause": "because",
    "ain't": "is not",
    "can't": "cannot",
    "let's": "let us",
    "ma'am": "madam",
    "o'clock": "of the clock",
    "sha'n't": "shall not",
    "shan't": "shall not",
    "so's": "so as",
    "won't": "will not",
    "y'all": "you all",
}
"""By the contraction, in lower case."""
