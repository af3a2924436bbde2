"""A lock for each of many things."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio

_K = TypeVar("_K", bound=Hashable)


class Locks(Generic[_K]):
    """Locks by key. Each is there as long as somebody holds it or waits for it; `len` is their number."""

    def __init__(self) -> None:
        self._locks: dict[_K, anyio.Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def __contains__(self, key: _K) -> bool:
        """Returns True if somebody holds this lock, or waits for it."""
        return key in self._locks

    @asynccontextmanager
    async def held(self, key: _K) -> AsyncIterator[None]:
        """Holds the lock of a key."""
        lock = self._locks.setdefault(key, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():  # otherwise one that waited has it now
                self._locks.pop(key, None)
