"""The front door: serves all services on one HTTP port."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import trio
from hypercorn.utils import wrap_app

from tpy.clock import Clock
from tpy.frontends.http.access import HeaderPolicy
from tpy.frontends.http.app import create_app
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.http.port import HttpPort
from tpy.frontends.http.server import serve_http_port
from tpy.frontends.transport import BoundAddress
from tpy.services import Services


def create_port(options: HttpOptions, services: Services, clock: Clock) -> HttpPort:
    """The HTTP port, not yet listening. Raises InvalidArgument for options that cannot be served. In a Trio run only."""
    policy = HeaderPolicy(restricted=options.restricted, forward_pattern=options.header_forward_pattern)
    endpoint = InferEndpoint(services=services, clock=clock, policy=policy, max_input_size=options.max_input_size)
    app = create_app(endpoint)
    return HttpPort(
        options=options,
        app=wrap_app(app, options.max_input_size, "asgi"),
        endpoint=endpoint,
        clock=clock,
    )


async def serve_http(
    options: HttpOptions,
    services: Services,
    clock: Clock,
    *,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the HTTP API until `stop` is set and what was in flight has been answered (at most `options.drain_timeout_s`).

    Listens on `inherited` when there are any, whose address belongs to whoever made them, else on that of the options.
    Reports the bound address as soon as connections are accepted. Raises Unavailable when the address cannot be bound and
    InvalidArgument for options that cannot be served. Cancelled: stops at once, requests in flight are cancelled.
    """
    await serve_http_port(create_port(options, services, clock), stop=stop, inherited=inherited, task_status=task_status)
