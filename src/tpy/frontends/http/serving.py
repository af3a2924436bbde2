"""Serves a port that speaks HTTP/1.1, on the transport of all ports, with the life of its Quart application.

The nursery tree of a port:

    serve_http_port
    +-- lifespan            Hypercorn's Lifespan task for the application
        +-- serve_port      connections (see the transport)
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import trio
from hypercorn.trio.lifespan import Lifespan
from hypercorn.utils import parse_socket_addr, wrap_app
from quart_trio import QuartTrio

from tpy.clock import Clock
from tpy.frontends.access import gate_of
from tpy.frontends.http.access import HeaderPolicy
from tpy.frontends.http.app import create_app
from tpy.frontends.http.connection import Http1Connection
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.http.port import HttpPort
from tpy.frontends.transport import BoundAddress, Wire, serve_port
from tpy.reloading import reloaded
from tpy.services import Services


def create_port(options: HttpOptions, services: Services, clock: Clock) -> HttpPort:
    """The HTTP port, not yet listening. Raises InvalidArgument for options that cannot be served. In a Trio run only."""
    gate = None if options.auth is None else gate_of(options.auth)
    policy = HeaderPolicy(restricted=options.restricted, forward_pattern=options.header_forward_pattern, gate=gate)
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
    port = create_port(options, services, clock)
    gate = None if options.auth is None else gate_of(options.auth)
    with nullcontext() if gate is None else reloaded(gate.reload):
        await serve_http_port(port, stop=stop, inherited=inherited, task_status=task_status)


async def serve_application(
    options: HttpOptions,
    create: Callable[[InferEndpoint], QuartTrio],
    services: Services,
    clock: Clock,
    *,
    name: str,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the application that `create` makes around an endpoint, inference too; as `serve_http` otherwise."""
    policy = HeaderPolicy(restricted=options.restricted, forward_pattern=options.header_forward_pattern)
    endpoint = InferEndpoint(services=services, clock=clock, policy=policy, max_input_size=options.max_input_size)
    port = HttpPort(
        options=options,
        app=wrap_app(create(endpoint), options.max_input_size, "asgi"),
        endpoint=None,
        bodies=endpoint.bodies,
        clock=clock,
        name=name,
    )
    await serve_http_port(port, stop=stop, inherited=inherited, task_status=task_status)


async def serve_http_port(
    port: HttpPort,
    *,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve as `serve_port` does. From `stop` on the open connections close with their last answer, idle ones after a moment in
    which a request that comes is answered."""

    async def serve(wire: Wire, connected: socket.socket) -> None:
        client = parse_socket_addr(connected.family, connected.getpeername())
        server = parse_socket_addr(connected.family, connected.getsockname())
        await Http1Connection(port, wire, client=client, server=server).run()

    lifespan = Lifespan(port.app, port.config, {})
    async with trio.open_nursery() as nursery:
        await nursery.start(lifespan.handle_lifespan)
        await lifespan.wait_for_startup()
        await serve_port(port, serve, stop=stop, inherited=inherited, task_status=task_status)
        await lifespan.wait_for_shutdown()
        nursery.cancel_scope.cancel()
