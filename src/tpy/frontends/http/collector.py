"""A pause for Python's garbage collector while a piece of a document is parsed.

Nested arrays are lists that are all alive, and making them starts collection after collection, each of which walks all that are
there already, with the interpreter locked. Nothing there is garbage, so nothing is lost. The pause is as long as one piece takes:
while large requests come one after another, what others left behind is still collected between the pieces.
"""

from __future__ import annotations

import gc
import threading
from types import TracebackType


class CollectorPause:
    """A context manager for any number of threads at a time: the collector runs again when the last of them has left, if it ran
    before the first came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._ran = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._ran = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._ran:
                gc.enable()
