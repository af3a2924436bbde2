"""What the engine asks of a response cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tpy.messages import CacheStatistics, ParameterValue, Tensor
from tpy_data.cache.core.entry import CachedResponse


class LookupWaiter(Protocol):
    """Who asked."""

    def found(self, response: CachedResponse | None) -> None:
        """What is kept under the key; None: nothing. Called once, on the Trio thread, inside `lookup` or later."""
        ...


class InsertWaiter(Protocol):
    """Who inserted."""

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
        """Whether other servers answer from it, too: then a model's identity is its content, else its generation."""
        ...

    def statistics(self) -> CacheStatistics:
        """Counters of the whole cache."""
        ...

    def close(self) -> None:
        """The server ends."""
        ...
