"""Serves a port: sockets in, connections out, an orderly end.

The nursery tree of a port:

    serve_port
    +-- turns               a task, while there are connections
        +-- connections     one task per connection (its own tasks are in its own nursery)
            +-- accepting   a task per listening socket; one that looks at the files of TLS
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import msgspec
import trio

from tpy.clock import Clock
from tpy.frontends.transport.accepting import ConnectionListener
from tpy.frontends.transport.listening import BoundAddress, address_of, close, listen
from tpy.frontends.transport.tls_options import TlsOptions
from tpy.frontends.transport.turns import LoopTurns
from tpy.frontends.transport.wire import SocketWire, Wire
from tpy.limits import ACCEPTED_CONNECTIONS_MAX, ANSWERS_STOP_S, TLS_HANDSHAKE_S_MAX, TLS_HANDSHAKE_STOP_S_MAX
from tpy.reloading import reloaded
from tpy.sending import GONE
from tpy.unexpected import unexpected_error

if TYPE_CHECKING:
    from tpy.frontends.core.proxy_header import ProxyHeader
    from tpy.frontends.transport.tls import ServerTls
    from tpy.frontends.transport.tls_wire import TlsWire

_log = logging.getLogger(__name__)


class ListenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of listening. `address` is a host name, an IP address, or `unix:<path>`; `port` 0 takes a free one (ignored
    for a Unix socket). `tls` None: in the clear. `proxy_protocol`: each connection begins with the header of a balancer, which
    tells whose it is. `drain_timeout_s` is how long requests in flight may finish after the shutdown was asked for; in seconds of
    Trio's clock."""

    address: str = "0.0.0.0"
    port: int = 0
    reuse_port: bool = False
    tls: TlsOptions | None = None
    proxy_protocol: bool = False
    drain_timeout_s: float = 30.0


class Connection(Protocol):
    """A connection as its port sees it."""

    def begin_drain(self) -> None:
        """The server stops: end when what is in flight has been answered."""
        ...


class Port:
    """The state that the connections of one port share. `name` is for the log; `alpn` are the protocols that TLS must agree on,
    one of them, unless the client names none and `alpn_required` is false."""

    def __init__(
        self, options: ListenOptions, clock: Clock, *, name: str, alpn: Sequence[str] = (), alpn_required: bool = False
    ) -> None:
        self.name = name
        self.listen_options = options
        self.clock = clock
        self.alpn = alpn
        self.alpn_required = alpn_required
        self.turns = LoopTurns(clock)
        self.connections: set[Connection] = set()
        self.is_draining = False

    def opened(self, connection: Connection) -> None:
        """Count a connection as open until `closed`: it drains with the port."""
        self.connections.add(connection)
        if self.is_draining:
            connection.begin_drain()

    def closed(self, connection: Connection) -> None:
        """The counterpart of `opened`."""
        self.connections.discard(connection)

    @contextmanager
    def serving(self, connection: Connection) -> Iterator[None]:
        """Count a connection as open within the block."""
        self.opened(connection)
        try:
            yield
        finally:
            self.closed(connection)

    def begin_drain(self) -> None:
        """Ask all connections, including ones still being set up, to end when what is in flight has been answered."""
        self.is_draining = True
        for connection in tuple(self.connections):
            connection.begin_drain()


class Ends(NamedTuple):
    """Both ends of a connection; of a Unix socket the client has no address. `server` looks its end up, which few want to know.
    `certificate` is `getpeercert` of its TLS."""

    client: BoundAddress = BoundAddress()
    server: Callable[[], BoundAddress] = BoundAddress
    certificate: Callable[[], Any] = dict


Serve = Callable[[Wire, Ends], Awaitable[None]]
"""Serves one connection of a port until it ends, and closes its wire."""


async def serve_port(
    port: Port,
    serve: Serve,
    *,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set, then drain: no new connections, and the open ones end when what is in flight has been answered.
    What is left after the drain time-out is cancelled.

    Listens on `inherited` when there are any, whose address belongs to whoever made them, else on that of the options. Reports
    the bound address when connections are accepted. Raises Unavailable when the address cannot be bound and InvalidArgument for
    options that cannot be served. Cancelled: everything in flight is cancelled. Opens all nurseries.
    """
    options = port.listen_options
    tls = None if options.tls is None else _server_tls(port, options.tls)
    sockets = inherited or await listen(options.address, options.port, reuse_port=options.reuse_port)
    address = address_of(sockets[0])
    connected = partial(SocketWire, reactor=port.turns.reactor)
    at_once = 1 if port.turns.reactor.shares_descriptors else ACCEPTED_CONNECTIONS_MAX  # each process is to get its part
    try:
        async with port.turns.watched(), trio.open_nursery() as watching:
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    handle = partial(_serve_connection, port, serve, tls)
                    for listening in sockets:
                        listener = ConnectionListener(listening, connected, port=port.name, at_once=at_once)
                        accepting.start_soon(_accept_connections, listener, connections, handle)
                    if tls is not None:
                        accepting.start_soon(tls.follow_files)
                    task_status.started(address)
                    with nullcontext() if tls is None else reloaded(tls.reload):
                        await stop.wait()
                    accepting.cancel_scope.cancel()
                ends_s = trio.current_time() + options.drain_timeout_s
                connections.cancel_scope.deadline = ends_s
                watching.start_soon(_count_connections, port, ends_s)
                port.begin_drain()
            watching.cancel_scope.cancel()
    finally:
        close(sockets, None if inherited else address)


def _server_tls(port: Port, options: TlsOptions) -> ServerTls:
    from tpy.frontends.transport.tls import ServerTls  # most ports are in the clear

    return ServerTls(options, port=port.name, alpn=port.alpn)


async def _count_connections(port: Port, ends_s: float) -> None:
    """While a port drains the log says each second, in Triton's words, how many connections it waits for."""
    while count := len(port.connections):
        left_s = max(0, round(ends_s - ANSWERS_STOP_S - trio.current_time()))  # until then requests are not refused
        text = "Timeout %(left_s)d: Found %(count)d %(port)s service connections"
        _log.info(text, {"left_s": left_s, "count": count, "port": port.name})
        await trio.sleep(1)


async def _accept_connections(
    listener: ConnectionListener[SocketWire], connections: trio.Nursery, handle: Callable[[SocketWire], Awaitable[None]]
) -> NoReturn:
    """The accept loop of one listening socket. Closes it when it is cancelled."""
    async with listener:
        while True:
            connections.start_soon(handle, await listener.accept())


async def _serve_connection(port: Port, serve: Serve, tls: ServerTls | None, wire: SocketWire) -> None:
    """One connection, in the `connections` nursery. A bug in it ends this connection only."""
    try:
        ends = Ends(_address(wire.raw.getpeername()), partial(address_of, wire.raw))
        if port.listen_options.proxy_protocol:
            header = await _read_proxy_header(port, wire)
            if header is None:
                return
            if header.source is not None:
                ends = ends._replace(client=BoundAddress(host=header.source[0], port=header.source[1]))
        if tls is None:
            await serve(wire, ends)
        elif (secure := await _handshake(port, tls.context, wire)) is not None:
            await serve(secure, ends._replace(certificate=secure.certificate))
    except GONE:
        return  # reset, or no TLS, while it was set up
    except Exception:
        unexpected_error(f"{port.name} connection failed unexpectedly")
    finally:
        wire.close()


def _address(name: Any) -> BoundAddress:
    return BoundAddress(host=name[0], port=name[1]) if isinstance(name, tuple) else BoundAddress()


async def _read_proxy_header(port: Port, wire: SocketWire) -> ProxyHeader | None:
    """The header that the balancer sends first; None: it did not come in time, or it is wrong."""
    from tpy.frontends.core.proxy_header import ProxyHeader, ProxyHeaderError  # few ports expect one

    header = ProxyHeader()
    with trio.move_on_after(TLS_HANDSHAKE_S_MAX) as patience, port.serving(_Handshake(patience)):
        while header.needed:
            await wire.wait_readable()
            try:
                data = wire.raw.recv(header.needed)
            except BlockingIOError:
                continue
            if not data:
                return None
            try:
                header.feed(data)
            except ProxyHeaderError as error:
                # The peer's doing, and possibly done on purpose: not a warning, or an abuser fills the log.
                _log.debug("connection closed: %(why)s", {"why": str(error)})
                return None
        return header
    return None


class _Handshake:
    """A connection that is being set up: its TLS, or the header of its balancer."""

    def __init__(self, patience: trio.CancelScope) -> None:
        self._patience = patience

    def begin_drain(self) -> None:
        """A client that says nothing is not to hold the shutdown."""
        self._patience.deadline = min(self._patience.deadline, trio.current_time() + TLS_HANDSHAKE_STOP_S_MAX)


async def _handshake(port: Port, tls: ssl.SSLContext, wire: SocketWire) -> TlsWire | None:
    """TLS over the wire; None: it was not agreed on in time."""
    from tpy.frontends.transport.tls_wire import TlsWire  # most ports are in the clear

    secure = TlsWire(wire, port.turns, tls)
    with trio.move_on_after(TLS_HANDSHAKE_S_MAX) as patience, port.serving(_Handshake(patience)):
        await secure.handshake()
        if secure.protocol in port.alpn or not port.alpn_required:
            return secure
    return None
