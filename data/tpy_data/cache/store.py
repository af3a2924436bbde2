"""The protocol of a store that a StoredCache keeps answers in."""

from __future__ import annotations

from typing import Protocol


class StoreUnavailable(Exception):
    """The store does not answer."""


class StoreRefusal(Exception):
    """The store answered with an error about one key."""


class Store(Protocol):
    """Bytes by key. `get` and `put` are called in up to `threads_max` threads at a time, may block until `deadline_s` (of
    time.monotonic), and raise StoreUnavailable or StoreRefusal. A job is given up `patience_ns` after it was put."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def threads_max(self) -> int: ...

    @property
    def patience_ns(self) -> int: ...

    def get(self, key: bytes, deadline_s: float) -> bytes | None:
        """Returns the bytes under the key, whoever put them there; None: there are none."""
        ...

    def put(self, key: bytes, data: bytes, deadline_s: float) -> None:
        """Keep the bytes, if that can be."""
        ...

    def close(self) -> None:
        """Called once, in one of the threads, after everything else."""
        ...
