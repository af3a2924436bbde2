"""Handlers that are imported for the first call of one of them: what a server that only infers is not asked (docs/adr/0058)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import trio

from tpy.frontends.grpc.calls import fail_call, unexpected_error
from tpy.frontends.grpc.transport import Handlers, StreamCall, StreamHandler, UnaryCall, UnaryHandler


class LateHandlers:
    """`load` imports and makes the handlers, in a thread; calls that come before that is done wait in `nursery`."""

    def __init__(self, load: Callable[[], Handlers], nursery: trio.Nursery) -> None:
        self._load = load
        self._nursery = nursery
        self._loading = trio.Lock()
        self._loaded: Handlers | None = None

    def by_path(self, paths: Mapping[str, bool]) -> Handlers:
        """Handlers for these paths, each with True if its calls are streams, which `load` gives handlers to."""
        return {
            path: StreamHandler(partial(self._stream, path))
            if streams
            else UnaryHandler(partial(self._unary, path), in_task=True)
            for path, streams in paths.items()
        }

    def _unary(self, path: str, call: UnaryCall, message: memoryview) -> None:
        """See transport's UnaryHandler."""
        if self._loaded is not None:
            self._hand_over(self._loaded, path, call, message)
            return
        scope = trio.CancelScope()
        call.on_cancel(scope.cancel)
        self._nursery.start_soon(self._unary_later, scope, path, call, message)

    async def _unary_later(self, scope: trio.CancelScope, path: str, call: UnaryCall, message: memoryview) -> None:
        with scope:
            try:
                self._hand_over(await self._ready(), path, call, message)
            except Exception:  # it cannot be imported
                fail_call(call, unexpected_error(path))

    @staticmethod
    def _hand_over(handlers: Handlers, path: str, call: UnaryCall, message: memoryview) -> None:
        cast("UnaryHandler", handlers[path]).handle(call, message)

    async def _stream(self, path: str, call: StreamCall) -> None:
        """See transport's StreamHandler."""
        await cast("StreamHandler", (await self._ready())[path]).handle(call)

    async def _ready(self) -> Handlers:
        if self._loaded is None:
            async with self._loading:  # several calls may be the first ones
                if self._loaded is None:
                    self._loaded = await trio.to_thread.run_sync(self._load)
        return self._loaded
