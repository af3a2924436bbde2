"""Serves a port: sockets in, connections out, an orderly stop.

This stands in for `hypercorn.trio.run.worker_serve`, which has no hook for the protocol object. Connections that speak TLS or
HTTP/2, and all of them when `fast_path` is off, go to Hypercorn's own TCPServer; plain HTTP/1.1 goes to Http1Connection.

The nursery tree of a port:

    serve_port
    +-- lifespan            Hypercorn's Lifespan task for the application
    +-- connections         one task per connection (its own tasks are in its own nursery)
        +-- accepting       Trio's serve_listeners, one task per listening socket
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.events import Event, RawData
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from tpy import limits
from tpy.errors import InvalidArgument
from tpy.frontends.http.connection import GONE, Http1Connection
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.http.port import HttpPort
from tpy.frontends.http.wire import SocketWire, SocketWireListener
from tpy.frontends.listening import BoundAddress, address_of, close, listen

_log = logging.getLogger(__name__)

_REPORT_S_MAX = 5.0


def hypercorn_config(options: HttpOptions) -> Config:
    """Hypercorn's configuration, for what it serves itself: nothing that Triton does not send, our limits and time-outs."""
    if bool(options.certificate_file) != bool(options.key_file):
        raise InvalidArgument("TLS for HTTP needs both the certificate file and the key file")
    config = Config()
    config.include_date_header = False
    config.include_server_header = False
    config.errorlog = logging.getLogger("tpy.frontends.http.hypercorn")
    config.h11_max_incomplete_size = limits.HTTP_HEADER_BYTES_MAX
    config.h11_pass_raw_headers = True
    config.h2_max_header_list_size = limits.HTTP_HEADER_BYTES_MAX
    config.keep_alive_timeout = options.keep_alive_timeout_s
    config.keep_alive_max_requests = 2**31
    config.graceful_timeout = options.drain_timeout_s
    if options.certificate_file:
        config.certfile = options.certificate_file
        config.keyfile = options.key_file
    return config


class _StockServer(TCPServer):
    """Hypercorn's connection, also for a client whose first bytes have been read already."""

    beginning = b""

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await super().protocol_send(event)
            return
        # "Idle again" and "closed" are reported by the application's task at the end of its response, when Quart-Trio has
        # just cancelled it: without the shield they are lost, and an idle connection outlives its time-out and the stop.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _REPORT_S_MAX):
            await super().protocol_send(event)

    async def _read_data(self) -> None:
        if self.beginning:
            await self.protocol.handle(RawData(self.beginning))
        await super()._read_data()


async def serve_port(
    port: HttpPort,
    *,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set, then drain: no new connections, idle ones closed, the others until their last answer or until
    `drain_timeout_s` has passed, which cancels what is left.

    Listens on `inherited` when there are any, whose address belongs to whoever made them, else on that of the options.
    Reports the bound address when connections are accepted. Raises Unavailable when the address cannot be bound and
    InvalidArgument for options that cannot be served. Cancelled: everything in flight is cancelled. Opens all nurseries.
    """
    tls = port.config.create_ssl_context()
    sockets = inherited or await listen(port.options.address, port.options.port, reuse_port=port.options.reuse_port)
    address = address_of(sockets[0])
    try:
        lifespan = Lifespan(port.app, port.config, {})
        async with trio.open_nursery() as lifespan_nursery:
            await lifespan_nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    accepting.start_soon(
                        partial(
                            trio.serve_listeners,
                            partial(_serve_connection, port, tls),
                            [SocketWireListener(listening) for listening in sockets],
                            handler_nursery=connections,
                        )
                    )
                    task_status.started(address)
                    await stop.wait()
                    accepting.cancel_scope.cancel()
                connections.cancel_scope.deadline = trio.current_time() + port.options.drain_timeout_s
                await port.begin_stop()
            await lifespan.wait_for_shutdown()
            lifespan_nursery.cancel_scope.cancel()
    finally:
        close(sockets, None if inherited else address)


async def _serve_connection(port: HttpPort, tls: object, wire: SocketWire) -> None:
    """One connection, in the `connections` nursery. A bug in it ends this connection only."""
    try:
        if tls is not None or not port.options.fast_path:
            await _serve_stock(port, tls, wire, b"")
            return
        raw = wire.raw
        client = parse_socket_addr(raw.family, raw.getpeername())
        server = parse_socket_addr(raw.family, raw.getsockname())
        connection = Http1Connection(port, wire, client=client, server=server)
        await connection.run()
        if connection.preface:
            await _serve_stock(port, None, wire, connection.preface)
    except GONE:
        return  # reset while it was set up
    except Exception:
        _log.exception("HTTP connection failed unexpectedly")
    finally:
        with trio.CancelScope(shield=True):  # closing a socket does not wait
            await wire.aclose()


async def _serve_stock(port: HttpPort, tls: object, wire: SocketWire, beginning: bytes) -> None:
    stream: object = wire.stream
    if tls is not None:
        stream = trio.SSLStream(wire.stream, tls, server_side=True, https_compatible=True)  # type: ignore[arg-type]
    server = _StockServer(port.app, port.config, port.context, ConnectionState({}), stream)  # type: ignore[arg-type]
    server.beginning = beginning
    await server.run()
