"""HttpPort: the state that the connections of one HTTP port share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from tpy.clock import Clock
from tpy.frontends.core.budget import ByteBudget
from tpy.frontends.http.application import Application
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.message import HttpReply, HttpRequest, Refuse, refusal_reply
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.transport import Port
from tpy.limits import HTTP_STOP_IDLE_S

Answer = Callable[[HttpRequest], Awaitable[HttpReply | None]]
"""Answers a request that is not inference, without the application; None: that is for the application. Raises nothing."""


class HttpPort(Port):
    """One port, and how to serve it. `endpoint` answers inference; None leaves that to the others. `answer` is asked first for
    everything else, then `application`; a port without one has an `answer` to everything. `bodies` is the budget of request
    bodies, by default the endpoint's. `stop_idle_s`: how long a connection may be idle once the server stops. `stopping` is set
    then. `refuse` makes answers to what HTTP itself does not allow."""

    def __init__(
        self,
        *,
        options: HttpOptions,
        endpoint: InferEndpoint | None,
        clock: Clock,
        application: Application | None = None,
        answer: Answer | None = None,
        bodies: ByteBudget | None = None,
        name: str = "HTTP",
        stop_idle_s: float = HTTP_STOP_IDLE_S,
        stopping: trio.Event | None = None,
        refuse: Refuse = refusal_reply,
    ) -> None:
        super().__init__(options, clock, name=name, alpn=("http/1.1",))
        self.options = options
        self.application = application
        self.answer = answer
        self.stop_idle_s = stop_idle_s
        self.stopping = trio.Event() if stopping is None else stopping
        self.endpoint = endpoint
        self.refuse = refuse
        self.bodies = bodies or (ByteBudget(options.max_input_size) if endpoint is None else endpoint.bodies)
