"""Listening sockets of every port: from an address to sockets, and back to where a port is served."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable

import msgspec
import trio

from tpy.errors import Unavailable

_BACKLOG = 1024
"""As Triton's; the kernel may allow less."""

UNIX = "unix:"
"""The prefix of the path of a Unix socket in an address."""


class BoundAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a port: `host` and `port`, or `path` of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"{UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def listen(address: str, port: int, *, reuse_port: bool) -> list[socket.socket]:
    """Listening sockets, at least one: for a name with several addresses one each, all on one port.

    `address` is a host name, an IP address, or `unix:<path>` (then `port` is ignored). Close them with `close`. Raises
    Unavailable when the address cannot be bound.
    """
    sockets: list[socket.socket] = []
    try:
        if address.startswith(UNIX):
            sockets.append(_listen_unix(address.removeprefix(UNIX)))
            return sockets
        found = await trio.socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        number = port
        for family, kind, protocol, _, where in found:
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((where[0], number, *where[2:]))
            listening.listen(_BACKLOG)
            number = listening.getsockname()[1]
    except OSError as error:
        for listening in sockets:
            listening.close()
        shown = address if address.startswith(UNIX) else f"{address}:{port}"
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(f"Socket '{shown}' already in use") from error  # Triton's words
        raise Unavailable(f"failed to listen on address '{shown}': {error.strerror or error}") from error
    return sockets


def address_of(listening: socket.socket) -> BoundAddress:
    """Returns the address of a listening socket."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return BoundAddress(path=name)
    return BoundAddress(host=name[0], port=name[1])


def close(sockets: Iterable[socket.socket], address: BoundAddress | None) -> None:
    """Close what `listen` opened, and remove the file of a Unix socket at `address`."""
    for listening in sockets:
        listening.close()
    if address is not None and address.path:
        _remove_socket_file(address.path)


def _listen_unix(path: str) -> socket.socket:
    if not path:
        raise OSError("a Unix socket needs a path behind 'unix:'")
    _remove_socket_file(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _remove_socket_file(path: str) -> None:
    """Remove a Unix socket's file, also one that a dead server left; anything else at `path` is left alone."""
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        return
