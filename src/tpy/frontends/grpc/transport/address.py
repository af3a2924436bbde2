"""Listening sockets: from an address to sockets, and back to where a port is served."""

from __future__ import annotations

import os
import socket
import stat

import msgspec
import trio

from tpy.errors import Unavailable
from tpy.frontends.grpc.transport.options import GrpcOptions

_BACKLOG = 1024
"""As Triton's; the kernel may allow less."""

_UNIX = "unix:"


class BoundAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the port is served: `host` and `port`, or `path` of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def listen(options: GrpcOptions) -> list[socket.socket]:
    """Listening sockets, at least one: for a name with several addresses one each, all on one port.

    The caller closes them. Raises Unavailable when the address cannot be bound.
    """
    sockets: list[socket.socket] = []
    try:
        if options.address.startswith(_UNIX):
            path = options.address.removeprefix(_UNIX)
            remove_socket_file(path)
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sockets.append(listening)
            listening.bind(path)
            listening.listen(_BACKLOG)
            return sockets
        found = await trio.socket.getaddrinfo(options.address, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        number = options.port
        for family, kind, protocol, _, where in found:
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if options.reuse_port:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((where[0], number, *where[2:]))
            listening.listen(_BACKLOG)
            number = listening.getsockname()[1]
    except OSError as error:
        for listening in sockets:
            listening.close()
        where_text = options.address if options.address.startswith(_UNIX) else f"{options.address}:{options.port}"
        raise Unavailable(f"failed to listen on gRPC address '{where_text}': {error.strerror or error}") from error
    return sockets


def address_of(listening: socket.socket) -> BoundAddress:
    """Where a listening socket listens."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return BoundAddress(path=name)
    return BoundAddress(host=name[0], port=name[1])


def peer_of(connected: socket.socket) -> str:
    """The other end of a connection as gRPC writes it: `ipv4:127.0.0.1:5000`, `ipv6:[::1]:5000`, `unix:`. Raises OSError when the
    connection is gone already."""
    if connected.family == socket.AF_UNIX:
        return _UNIX
    name = connected.getpeername()
    return f"ipv6:[{name[0]}]:{name[1]}" if connected.family == socket.AF_INET6 else f"ipv4:{name[0]}:{name[1]}"


def remove_socket_file(path: str) -> None:
    """Remove a Unix socket's file, also one that a dead server left; anything else at `path` is left alone."""
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        return
