"""Serves a port that speaks HTTP/1.1, on the transport of all ports, with the life of its Quart application.

The nursery tree of a port:

    serve_http_port
    +-- lifespan            Hypercorn's Lifespan task for the application
        +-- serve_port      connections (see the transport)
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from tpy.clock import Clock
from tpy.errors import TpyError
from tpy.frontends.access import gate_of
from tpy.frontends.http.access import HeaderPolicy
from tpy.frontends.http.application import Application
from tpy.frontends.http.connection import Http1Connection
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.message import (
    LIVE,
    READING,
    READY,
    HttpReply,
    HttpRequest,
    Refuse,
    error_reply,
    health_reply,
    refusal_reply,
)
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.http.port import HttpPort
from tpy.frontends.table import Serve
from tpy.frontends.transport import BoundAddress, Ends, Wire, serve_port
from tpy.reloading import reloaded
from tpy.services import Services

if TYPE_CHECKING:
    from quart_trio import QuartTrio


def create_port(options: HttpOptions, services: Services, clock: Clock, *, name: str = "HTTP") -> HttpPort:
    """A port with the HTTP API, not yet listening. Raises InvalidArgument for options that cannot be served. In a Trio run."""
    endpoint = create_endpoint(options, services, clock)
    stopping = trio.Event()

    def make() -> QuartTrio:
        from tpy.frontends.http.app import create_app

        return create_app(endpoint, page=options.page, stopping=stopping)

    return HttpPort(
        options=options,
        application=Application(make, body_bytes_max=options.max_input_size),
        answer=partial(_health, endpoint),
        endpoint=endpoint,
        clock=clock,
        name=name,
        stopping=stopping,
    )


async def _health(endpoint: InferEndpoint, request: HttpRequest) -> HttpReply | None:
    """Answer whether the server lives and is ready, which probes ask all the time, where everybody may know it."""
    path = request.target.partition(b"?")[0].decode("latin-1")  # as it was sent: other spellings have no route
    if request.method not in READING or path not in (LIVE, READY):
        return None
    if not endpoint.policy.is_open or endpoint.policy.web_pages.hosts_only:
        return None
    repository = endpoint.services.repository
    try:
        return health_reply(repository.server_live() if path == LIVE else repository.server_ready())
    except TpyError as error:
        return error_reply(error)


def create_endpoint(options: HttpOptions, services: Services, clock: Clock) -> InferEndpoint:
    """The endpoint of a port with these options, with its policy. Raises InvalidArgument as `create_port`."""
    policy = HeaderPolicy(
        restricted=options.restricted,
        forward_pattern=options.header_forward_pattern,
        gate=None if options.auth is None else gate_of(options.auth),
        managed_elsewhere=options.managed_elsewhere,
        web_pages=options.web_pages,
    )
    return InferEndpoint(services=services, clock=clock, policy=policy, max_input_size=options.max_input_size)


def application_port(
    create: Callable[..., QuartTrio],
    options: HttpOptions,
    services: Services,
    clock: Clock,
    *,
    name: str,
    refuse: Refuse = refusal_reply,
    **values: object,
) -> HttpPort:
    """A port with the application that `create(endpoint, options=options, **values)` makes around an endpoint, inference too.
    `refuse` as for HttpPort. Raises InvalidArgument as `create_port`."""
    endpoint = create_endpoint(options, services, clock)
    app = create(endpoint, options=options, **values)
    return HttpPort(
        options=options,
        application=Application(lambda: app, body_bytes_max=options.max_input_size),
        endpoint=None,
        bodies=endpoint.bodies,
        clock=clock,
        name=name,
        refuse=refuse,
    )


def serving(create: Callable[[Any, Services, Clock], HttpPort | Awaitable[HttpPort]]) -> Serve:
    """Returns what serves the port that `create` makes of options, services and a clock."""

    async def serve(
        options: Any,
        services: Services,
        clock: Clock,
        /,
        *,
        stop: trio.Event,
        inherited: Sequence[socket.socket] = (),
        task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        port = create(options, services, clock)
        if not isinstance(port, HttpPort):
            port = await port
        await serve_http_port(port, stop=stop, inherited=inherited, task_status=task_status)

    return serve


async def serve_http_port(
    port: HttpPort,
    *,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve as `serve_port` does. From `stop` on the open connections close with their last answer, idle ones after a moment in
    which a request that comes is answered. The files of --auth-config and --tenants-file are read again with all others."""

    async def serve(wire: Wire, ends: Ends) -> None:
        await Http1Connection(port, wire, ends).run()

    auth = port.options.auth
    async with trio.open_nursery() as nursery, nullcontext() if port.application is None else port.application.living():
        with nullcontext() if auth is None else reloaded(gate_of(auth).reload):
            nursery.start_soon(_set_after, stop, port.stopping)
            await serve_port(port, serve, stop=stop, inherited=inherited, task_status=task_status)
        nursery.cancel_scope.cancel()


async def _set_after(event: trio.Event, then: trio.Event) -> None:
    await event.wait()
    then.set()


serve_http = serving(create_port)
"""Serves the HTTP API."""
