"""A trace setting."""

from __future__ import annotations

from typing import Final

import msgspec

TIMESTAMPS: Final = "TIMESTAMPS"
TENSORS: Final = "TENSORS"


class TraceSetting(msgspec.Struct, frozen=True, kw_only=True):
    """`levels` are of TIMESTAMPS and TENSORS, none: off. One request in `rate` is traced, `count` of them, -1: without end.
    A file has `log_frequency` traces, 0: all of them."""

    levels: frozenset[str] = frozenset()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
