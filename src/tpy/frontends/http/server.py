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
import math
import socket
from collections.abc import Sequence
from functools import partial

import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from tpy import limits
from tpy.errors import InvalidArgument
from tpy.frontends.accepting import ConnectionListener
from tpy.frontends.http.connection import GONE, HTTP2_PREFACE, Http1Connection
from tpy.frontends.http.http2_flood import Http2Flood
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.http.port import HttpPort, HypercornConfig
from tpy.frontends.http.wire import SocketWire
from tpy.frontends.listening import BoundAddress, address_of, close, listen
from tpy.units import NS_PER_S

_log = logging.getLogger(__name__)

_REPORT_S_MAX = 5.0
_READ_BYTES = 65_536


def hypercorn_config(options: HttpOptions) -> HypercornConfig:
    """Hypercorn's configuration, for what it serves itself: nothing that Triton does not send, our limits and time-outs."""
    if bool(options.certificate_file) != bool(options.key_file):
        raise InvalidArgument("TLS for HTTP needs both the certificate file and the key file")
    config = HypercornConfig()
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


class _Refused(Exception):
    """What a client floods the connection with."""


class _StockServer(TCPServer):
    """Hypercorn's connection, also for a client whose first bytes have been read already; HTTP/2 within bounds."""

    beginning = b""
    write_timeout_s = math.inf
    _flood: Http2Flood | None = None

    async def run(self) -> None:
        """Serve until the connection ends. Raises what is a bug."""
        try:
            await super().run()
        except* Exception as errors:
            if self._flood is None:
                raise
            # The client floods, or Hypercorn's HTTP/2 failed on what a client may send: a path that is not ASCII, a CONNECT
            # without one, more priorities than it has room for. It ends this connection, and nobody can fill the log so.
            _log.debug("HTTP/2 connection ended: what the client sends is not served", exc_info=errors)

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._send(event.data)
            return
        # "Idle again" and "closed" are reported by the application's task at the end of its response, when Quart-Trio has
        # just cancelled it: without the shield they are lost, and an idle connection outlives its time-out and the stop.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _REPORT_S_MAX):
            await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        """As Hypercorn, but a client that takes nothing is given up: the shield would hold the stop of the server for ever."""
        if self._flood is not None:
            self._flood.sent(len(data))
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self.write_timeout_s) as patience:
                async with self.send_lock:
                    await self.stream.send_all(data)
        except GONE:
            await self.protocol.handle(Closed())
        if patience.cancelled_caught:
            with trio.CancelScope(shield=True):  # closing by force does not wait
                await trio.aclose_forcefully(self.stream)
            await self.protocol.handle(Closed())

    async def _read_data(self) -> None:
        """Read until the client leaves, or floods."""
        data = self.beginning or await self._receive()
        if data.startswith(HTTP2_PREFACE[:4]):
            self._flood = Http2Flood(_now_ns())
        while data:
            if self._flood is not None and (abuse := self._flood.received(data, _now_ns())) is not None:
                raise _Refused(abuse)
            await self.protocol.handle(RawData(data))
            data = await self._receive()
        await self.protocol.handle(Closed())

    async def _receive(self) -> bytes:
        """Empty when the client has left."""
        try:
            return bytes(await self.stream.receive_some(_READ_BYTES))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return b""


def _now_ns() -> int:
    return int(trio.current_time() * NS_PER_S)


async def serve_port(
    port: HttpPort,
    *,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set, then drain: no new connections; the open ones close with their last answer, idle ones after a
    moment in which a request that comes is answered. When `drain_timeout_s` has passed what is left is cancelled.

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
                            [ConnectionListener(listening, SocketWire, port=port.name) for listening in sockets],
                            handler_nursery=connections,
                        )
                    )
                    task_status.started(address)
                    await stop.wait()
                    accepting.cancel_scope.cancel()
                connections.cancel_scope.deadline = trio.current_time() + port.options.drain_timeout_s
                port.begin_stop()
                lifespan_nursery.start_soon(port.end_idle)
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
    server.write_timeout_s = port.options.write_timeout_s
    await server.run()
