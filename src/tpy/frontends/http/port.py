"""HttpPort: the state that the connections of one HTTP port share."""

from __future__ import annotations

import logging

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper

from tpy.clock import Clock
from tpy.frontends.core.budget import ByteBudget
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.message import Refuse, refusal_reply
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.transport import Port
from tpy.limits import HTTP_STOP_IDLE_S


class HttpPort(Port):
    """One port: its application and how to serve it. `endpoint` answers inference past the application; None leaves every route
    to the application. `bodies` is the budget of request bodies, by default the endpoint's. `stop_idle_s`: how long a connection
    may be idle once the server stops. `stopping` is set then. `refuse` makes answers to what HTTP itself does not allow."""

    def __init__(
        self,
        *,
        options: HttpOptions,
        app: AppWrapper,
        endpoint: InferEndpoint | None,
        clock: Clock,
        bodies: ByteBudget | None = None,
        name: str = "HTTP",
        stop_idle_s: float = HTTP_STOP_IDLE_S,
        stopping: trio.Event | None = None,
        refuse: Refuse = refusal_reply,
    ) -> None:
        super().__init__(options, clock, name=name, alpn=("http/1.1",))
        self.options = options
        self.app = app
        self.config = _hypercorn_config()
        self.context = WorkerContext(None)
        self.stop_idle_s = stop_idle_s
        self.stopping = trio.Event() if stopping is None else stopping
        self.endpoint = endpoint
        self.refuse = refuse
        self.bodies = bodies or (ByteBudget(options.max_input_size) if endpoint is None else endpoint.bodies)


def _hypercorn_config() -> Config:
    """Nothing in answers that Triton does not send. Hypercorn neither listens nor parses here, so its limits and time-outs have
    nothing to bound."""
    config = Config()
    config.include_date_header = False
    config.include_server_header = False
    config.errorlog = logging.getLogger("tpy.frontends.http.hypercorn")
    return config
