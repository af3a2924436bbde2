"""The protocols of a response cache, and of a store that a StoredCache keeps answers in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tpy.messages import CacheStatistics, ParameterValue, Tensor
from tpy_data.cache.core.entry import CachedResponse


class LookupWaiter(Protocol):
    """Gets the result of a lookup."""

    def found(self, response: CachedResponse | None) -> None:
        """Takes the entry of the key; None on a miss. Called once, on the Trio thread, inside `lookup` or later."""
        ...


class InsertWaiter(Protocol):
    """Gets the end of an insertion."""

    def inserted(self) -> None:
        """The answer is kept, or will not be. Called once, on the Trio thread, inside `insert` or later."""
        ...


class ResponseCache(Protocol):
    """Keeps answers by key. Used on the Trio thread. It never raises and never makes a request fail: what cannot be read is not
    there, and what cannot be kept is not kept."""

    def lookup(self, key: bytes, waiter: LookupWaiter) -> None:
        """Ask for what is kept under the key."""
        ...

    def insert(
        self,
        key: bytes,
        outputs: Sequence[Tensor],
        parameters: Mapping[str, ParameterValue],
        *,
        owner: str,
        waiter: InsertWaiter,
    ) -> None:
        """Keep a copy of this answer. `owner` names the copy of the model version that gave it, for `forget` and for people."""
        ...

    def forget(self, owner: str) -> None:
        """The owner is unloaded. What is kept of it need not be kept longer where nobody else can ask for it."""
        ...

    @property
    def shared(self) -> bool:
        """True if other servers use it, too: then a model is identified by its content, else by its generation."""
        ...

    def statistics(self) -> CacheStatistics:
        """Counters of the whole cache."""
        ...

    def close(self) -> None:
        """The server ends."""
        ...


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
        """Returns the bytes under the key, whoever put them there; None: the key is not there."""
        ...

    def put(self, key: bytes, data: bytes, deadline_s: float) -> None:
        """Keep the bytes, if that can be."""
        ...

    def close(self) -> None:
        """Called once, in one of the threads, after everything else."""
        ...
