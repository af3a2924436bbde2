"""Reading metrics pages in Prometheus' text format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_LINE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_samples(page: str, names: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str], float]]:
    """The samples of families whose names begin with one of these: name, labels, value. Lines of another form are passed over."""
    for line in page.splitlines():
        if not line.startswith(names):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        yield match[1], {name: _unescaped(text) for name, text in _LABEL.findall(match[2] or "")}, value


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text) if "\\" in text else text
