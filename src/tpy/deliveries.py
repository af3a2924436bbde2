"""Deliveries: answers that are delivered together, so that whoever passes them on does it once for all."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class Deliveries:
    """The engine has a block for each lot of answers. Used on the Trio thread; blocks may be nested, and then are one.

    with deliveries:
        sink.deliver(...)    # writes into a buffer, and: deliveries.afterwards(write_out)
        sink.deliver(...)    # the same
                             # here write_out is called, once
    """

    __slots__ = ("_afterwards", "_depth")

    def __init__(self) -> None:
        self._depth = 0
        self._afterwards: dict[Callable[[], None], None] = {}

    def afterwards(self, call: Callable[[], None]) -> bool:
        """Call this, once, when the answers that are being given now are all given. False when none are: nothing is called
        then. `call` must not raise."""
        if self._depth == 0:
            return False
        self._afterwards[call] = None
        return True

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._depth -= 1
        if self._depth == 0 and self._afterwards:
            afterwards, self._afterwards = self._afterwards, {}
            for call in afterwards:
                call()
