"""The application of a port. Quart and Hypercorn take a fifth of the CPU time of a start, and inference, health and metrics need
neither: both are imported for the first request that is about something else (docs/adr/0058)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import trio

if TYPE_CHECKING:
    from hypercorn.config import Config
    from hypercorn.trio.worker_context import WorkerContext
    from hypercorn.typing import AppWrapper
    from quart_trio import QuartTrio


class LoadedApplication(NamedTuple):
    """An application, and what Hypercorn has beside it for each request."""

    app: AppWrapper
    config: Config
    context: WorkerContext


class Application:
    """`make` imports and makes it. `body_bytes_max` of a request, which is bounded where it is read."""

    def __init__(self, make: Callable[[], QuartTrio], *, body_bytes_max: int) -> None:
        self._make = make
        self._body_bytes_max = body_bytes_max
        self._hosted: LoadedApplication | None = None
        self._loading = trio.Lock()
        self._loaded = trio.Event()
        self._started: trio.Event | None = None

    @property
    def is_loaded(self) -> bool:
        return self._hosted is not None

    def load(self) -> LoadedApplication:
        """Import and make it, unless that has been done. Takes a tenth of a second at first: not on the loop of a server."""
        if self._hosted is None:
            from hypercorn.config import Config
            from hypercorn.trio.worker_context import WorkerContext
            from hypercorn.utils import wrap_app

            config = Config()
            # Nothing in answers that Triton does not send. Hypercorn neither listens nor parses here, so its limits and time-outs
            # have nothing to bound.
            config.include_date_header = False
            config.include_server_header = False
            config.errorlog = logging.getLogger("tpy.frontends.http.hypercorn")
            self._hosted = LoadedApplication(wrap_app(self._make(), self._body_bytes_max, "asgi"), config, WorkerContext(None))
        return self._hosted

    async def ready(self) -> LoadedApplication:
        """The application, when it can be asked. Raises what its import raises."""
        if self._hosted is None:
            async with self._loading:  # several connections may need it at the same time
                await trio.to_thread.run_sync(self.load)
        self._loaded.set()
        if self._started is not None:
            await self._started.wait()
        return self.load()

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Within the block it has a life, as ASGI calls it: Hypercorn's Lifespan, from when it is loaded."""
        self._started = trio.Event()
        over = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._live, self._started, over)
            yield
            over.set()
            if not self._started.is_set():
                nursery.cancel_scope.cancel()

    async def _live(self, started: trio.Event, over: trio.Event) -> None:
        await self._loaded.wait()
        from hypercorn.trio.lifespan import Lifespan

        hosted = self.load()
        lifespan = Lifespan(hosted.app, hosted.config, {})
        async with trio.open_nursery() as nursery:
            await nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            started.set()
            await over.wait()
            await lifespan.wait_for_shutdown()
            nursery.cancel_scope.cancel()
