"""Serves a port that speaks HTTP/1.1, on the transport of all ports, and the life of its Quart application.

The nursery tree of a port:

    serve_http_port
    +-- lifespan            Hypercorn's Lifespan task for the application
        +-- serve_port      connections (see the transport)
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import trio
from hypercorn.trio.lifespan import Lifespan
from hypercorn.utils import parse_socket_addr

from tpy.frontends.http.connection import Http1Connection
from tpy.frontends.http.port import HttpPort
from tpy.frontends.transport import BoundAddress, Wire, serve_port


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
