"""What the connections of one HTTP port share."""

from __future__ import annotations

from typing import Protocol

from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper

from tpy.frontends.http.infer import Gate, InferEndpoint
from tpy.frontends.http.options import HttpOptions


class Stoppable(Protocol):
    """A connection of ours, as the port sees it."""

    def begin_stop(self) -> None:
        """The server stops: close now when idle, else with the last answer."""
        ...


class HttpPort:
    """One port: its application and how to serve it. `endpoint` answers inference past the application; None (metrics port,
    `fast_path` off) leaves every route to the application. `name` is for the log."""

    def __init__(
        self,
        *,
        options: HttpOptions,
        app: AppWrapper,
        config: Config,
        gate: Gate,
        endpoint: InferEndpoint | None,
        name: str = "HTTP",
    ) -> None:
        self.name = name
        self.options = options
        self.app = app
        self.config = config
        self.context = WorkerContext(None)
        self.gate = gate
        self.endpoint = endpoint
        self.connections: set[Stoppable] = set()

    async def begin_stop(self) -> None:
        """Refuse requests from now on, close idle connections, and let the others end with their last answer."""
        self.gate.stopping = True
        await self.context.terminated.set()
        for connection in tuple(self.connections):
            connection.begin_stop()
