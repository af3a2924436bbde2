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
        await _bind(sockets, address, port, reuse_port=reuse_port)
        for bound in sockets:
            bound.listen(_BACKLOG)
    except OSError as error:
        close(sockets, None)
        raise _unavailable(address, port, error) from error
    return sockets


async def check(address: str, port: int, *, reuse_port: bool) -> None:
    """Raise what `listen` would raise, as far as that can be known without listening: nobody can connect meanwhile."""
    sockets: list[socket.socket] = []
    try:
        await _bind(sockets, address, port, reuse_port=reuse_port)
    except OSError as error:
        close(sockets, None)
        raise _unavailable(address, port, error) from error
    close(sockets, address_of(sockets[0]))


async def _bind(sockets: list[socket.socket], address: str, port: int, *, reuse_port: bool) -> None:
    """Add bound sockets. Raises OSError."""
    if address.startswith(UNIX):
        _bind_unix(sockets, address.removeprefix(UNIX))
        return
    found = await trio.socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, where in found:
        bound = socket.socket(family, kind, protocol)
        sockets.append(bound)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # which its connections inherit
        if reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((where[0], port, *where[2:]))
        port = bound.getsockname()[1]


def _unavailable(address: str, port: int, error: OSError) -> Unavailable:
    shown = address if address.startswith(UNIX) else f"{address}:{port}"
    if error.errno == errno.EADDRINUSE:
        return Unavailable(f"Socket '{shown}' already in use")  # Triton's words
    return Unavailable(f"failed to listen on address '{shown}': {error.strerror or error}")


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


def _bind_unix(sockets: list[socket.socket], path: str) -> None:
    if not path:
        raise OSError("a Unix socket needs a path behind 'unix:'")
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sockets.append(bound)
    if _is_served(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    _remove_socket_file(path)
    bound.bind(path)


def _is_served(path: str) -> bool:
    """Returns True if a server listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) in (0, errno.EAGAIN)


def _remove_socket_file(path: str) -> None:
    """Remove a Unix socket's file, also one that a dead server left; anything else at `path` is left alone."""
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        return
