"""Serves the gRPC port: sockets in, connections out, an orderly stop.

The nursery tree of the port:

    serve_grpc
    +-- connections         one task per connection (its own tasks are in its own nursery)
        +-- accepting       Trio's serve_listeners, one task per listening socket
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Sequence
from functools import partial

import trio

from tpy.clock import Clock
from tpy.deliveries import Deliveries
from tpy.frontends.accepting import ConnectionListener
from tpy.frontends.grpc.transport.call import Handlers
from tpy.frontends.grpc.transport.connection import run_connection
from tpy.frontends.grpc.transport.options import GrpcOptions
from tpy.frontends.grpc.transport.peer import peer_of
from tpy.frontends.grpc.transport.port import GrpcPort
from tpy.frontends.grpc.transport.tls import ALPN, tls_context
from tpy.frontends.grpc.transport.wire import GONE, SocketWire, StreamWire
from tpy.frontends.listening import BoundAddress, address_of, close, listen
from tpy.limits import GRPC_SETUP_S_MAX

_log = logging.getLogger(__name__)


async def serve_grpc(
    options: GrpcOptions,
    handlers: Handlers,
    clock: Clock,
    *,
    deliveries: Deliveries | None = None,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `handlers` until `stop` is set and what was in flight has been answered (at most `options.drain_timeout_s`; what is
    left is cancelled then).

    From `stop` on no connection is accepted, every connection gets a GOAWAY, and only calls that were under way to us when it
    was sent are still begun. What is answered on a connection in one block of `deliveries` leaves in one piece. Listens on
    `inherited` when there are any, whose address belongs to whoever made them, else on that of the options. Reports the bound
    address as soon as connections are accepted. Raises Unavailable when the address cannot be bound and InvalidArgument for
    options that cannot be served. Cancelled: stops at once, calls are cancelled.
    """
    tls = tls_context(options)
    port = GrpcPort(options, handlers, clock, deliveries)
    sockets = inherited or await listen(options.address, options.port, reuse_port=options.reuse_port)
    address = address_of(sockets[0])
    try:
        async with port.turns.watched(), trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(
                    partial(
                        trio.serve_listeners,
                        partial(_serve_connection, port, tls),
                        [ConnectionListener(listening, SocketWire, port="gRPC") for listening in sockets],
                        handler_nursery=connections,
                    )
                )
                task_status.started(address)
                await stop.wait()
                accepting.cancel_scope.cancel()
            connections.cancel_scope.deadline = trio.current_time() + options.drain_timeout_s
            port.begin_drain()
    finally:
        close(sockets, None if inherited else address)


async def _serve_connection(port: GrpcPort, tls: ssl.SSLContext | None, wire: SocketWire) -> None:
    """One connection, in the `connections` nursery. A bug in it ends this connection only."""
    try:
        peer = peer_of(wire.raw)
        if tls is None:
            await run_connection(port, wire, peer)
            return
        stream = trio.SSLStream(wire.as_stream(), tls, server_side=True, https_compatible=True)
        with trio.move_on_after(GRPC_SETUP_S_MAX):
            await stream.do_handshake()
            if stream.selected_alpn_protocol() != ALPN:
                return
        if not stream.selected_alpn_protocol():
            return
        await run_connection(port, StreamWire(stream), peer)
    except GONE:
        return  # reset, or no TLS, while it was set up
    except Exception:
        _log.exception("gRPC connection failed unexpectedly")
    finally:
        with trio.CancelScope(shield=True):  # closing a socket does not wait
            await wire.aclose()
