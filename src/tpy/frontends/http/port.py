"""What the connections of one HTTP port share."""

from __future__ import annotations

from typing import Protocol

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper

from tpy.frontends.core.budget import ByteBudget
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.options import HttpOptions
from tpy.limits import HTTP_STOP_IDLE_S


class HypercornConfig(Config):
    """Hypercorn's configuration. Once the server stops, answers of HTTP/1.1 say that their connection closes."""

    stopping = False

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        """What every answer gets beside its own headers."""
        closing = [(b"connection", b"close")] if self.stopping and protocol == "h11" else []
        return [*super().response_headers(protocol), *closing]


class Stoppable(Protocol):
    """A connection of ours, as the port sees it."""

    def begin_stop(self) -> None:
        """The server stops: close with the last answer, or when none is owed and no request comes for a moment."""
        ...


class HttpPort:
    """One port: its application and how to serve it. `endpoint` answers inference past the application; None (metrics port,
    `fast_path` off) leaves every route to the application. `name` is for the log. `stop_idle_s` is how long a connection may be
    idle once the server stops."""

    def __init__(
        self,
        *,
        options: HttpOptions,
        app: AppWrapper,
        config: HypercornConfig,
        endpoint: InferEndpoint | None,
        name: str = "HTTP",
        stop_idle_s: float = HTTP_STOP_IDLE_S,
    ) -> None:
        self.name = name
        self.options = options
        self.app = app
        self.config = config
        self.context = WorkerContext(None)
        self.stop_idle_s = stop_idle_s
        self.stopping = False
        self.endpoint = endpoint
        self.bodies = ByteBudget(options.max_input_size) if endpoint is None else endpoint.bodies
        self.connections: set[Stoppable] = set()

    def begin_stop(self) -> None:
        """Answer what comes on the open connections, each of which ends with its last answer, or when it stays idle."""
        self.stopping = self.config.stopping = True
        for connection in tuple(self.connections):
            connection.begin_stop()

    async def end_idle(self) -> None:
        """The same for the connections that are Hypercorn's, after `begin_stop`: these have no moment of their own."""
        await trio.sleep(self.stop_idle_s)
        await self.context.terminated.set()
