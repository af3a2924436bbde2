"""LruCore: what is kept of as many bytes as there are, the least recently used going first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")


class _Kept(NamedTuple, Generic[V]):
    """One value, what it costs, and whose it is."""

    value: V
    size_bytes: int
    owner: object


class LruCore(Generic[V]):
    """Values by key, their sizes (as the caller counts them) together never above `bytes_max`.

    Every verb costs O(1) per value that it concerns. A value may have an owner, whose values can be forgotten together.
    """

    __slots__ = ("_kept", "_keys_of", "bytes_max", "bytes_used", "evictions", "hits", "misses")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self._kept: OrderedDict[bytes, _Kept[V]] = OrderedDict()
        self._keys_of: dict[object, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes) -> V | None:
        """The value, which is the most recently used one from now on; None: it is not here. Either is counted."""
        kept = self._kept.get(key)
        if kept is None:
            self.misses += 1
            return None
        self.hits += 1
        self._kept.move_to_end(key)
        return kept.value

    def put(self, key: bytes, value: V, size_bytes: int, owner: object = None) -> bool:
        """Keep the value, in place of one that has this key; as many of the least recently used ones go as it needs.

        False, and nothing has changed, when it is larger than the whole.
        """
        if size_bytes > self.bytes_max:
            return False
        if key in self._kept:
            self._drop(key)
        while self.bytes_used + size_bytes > self.bytes_max:
            self._drop(next(iter(self._kept)))
            self.evictions += 1
        self._kept[key] = _Kept(value, size_bytes, owner)
        self._keys_of.setdefault(owner, set()).add(key)
        self.bytes_used += size_bytes
        return True

    def forget(self, owner: object) -> None:
        """Drop all values of an owner. That does not count as eviction."""
        for key in list(self._keys_of.get(owner, ())):
            self._drop(key)

    def keys(self) -> list[bytes]:
        """The least recently used first."""
        return list(self._kept)

    def _drop(self, key: bytes) -> None:
        kept = self._kept.pop(key)
        self.bytes_used -= kept.size_bytes
        keys = self._keys_of[kept.owner]
        keys.remove(key)
        if not keys:
            del self._keys_of[kept.owner]
