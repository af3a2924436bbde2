"""Cost: what a request needs of an engine."""

from __future__ import annotations

from typing import NamedTuple


class Cost(NamedTuple):
    """The room that a request needs in an engine: sequences, and the tokens that they can come to."""

    sequences: int = 1
    tokens: int = 0
