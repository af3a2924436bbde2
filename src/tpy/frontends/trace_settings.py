"""The trace settings of a server that does not trace: what they are, and which updates of them it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tpy.echo import echo
from tpy.errors import InvalidArgument, Unsupported

TRACE_LEVEL: Final = "trace_level"
TRACE_NUMBERS: Final = ("trace_rate", "trace_count", "log_frequency")

TRACE_DEFAULTS: Final = {
    TRACE_LEVEL: "OFF",
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
"""In the order in which Triton answers them."""

_LEVELS: Final = frozenset({"TIMESTAMPS", "TENSORS"})


def require_unchanged(updates: Mapping[str, Sequence[str]]) -> None:
    """Take an update that changes nothing; one without values asks for the default. Levels and settings that nobody knows
    change nothing, nor does `trace_mode`, as in Triton.

    Raises InvalidArgument, with Triton's texts, for values that mean nothing, and Unsupported for an update that needs tracing.
    """
    if "trace_file" in updates:
        raise Unsupported("trace file location can not be updated through network protocol")
    for name in TRACE_NUMBERS:
        for text in updates.get(name, ()):
            if _integer(name, text) != int(TRACE_DEFAULTS[name]):
                raise _unsupported()
    levels = updates.get(TRACE_LEVEL, ())
    if "OFF" in levels and len(levels) > 1:
        raise InvalidArgument("Expect only one trace level 'OFF' is specified")
    if not _LEVELS.isdisjoint(levels):
        raise _unsupported()


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"Unable to parse '{name}', got: {echo(text)}") from None


def _unsupported() -> Unsupported:
    return Unsupported("changing trace settings is not supported: this server does not trace")
