"""Tells frontends when readiness may have changed, from the changes of the store."""

from __future__ import annotations

import trio

from tpy.state import ModelStateStore


class ReadinessSignal:
    """Implements tpy.services.ReadinessService."""

    def __init__(self) -> None:
        self._revision = 0
        self._changed = trio.Event()

    def notify(self) -> None:
        """Readiness may have changed."""
        self._revision += 1
        self._changed.set()
        self._changed = trio.Event()

    async def wait_changed(self, seen: int) -> int:
        """See ReadinessService."""
        await trio.lowlevel.checkpoint()
        while seen == self._revision:
            await self._changed.wait()
        return self._revision

    async def follow(self, store: ModelStateStore) -> None:
        """Notify at every change of the store, for ever."""
        async for _ in store.watch():
            self.notify()
