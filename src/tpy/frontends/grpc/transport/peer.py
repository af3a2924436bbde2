"""The other end of a connection, as gRPC writes it."""

from __future__ import annotations

import socket

from tpy.frontends.transport import UNIX


def peer_of(connected: socket.socket) -> str:
    """`ipv4:127.0.0.1:5000`, `ipv6:[::1]:5000` or `unix:`. Raises OSError when the connection is gone already."""
    if connected.family == socket.AF_UNIX:
        return UNIX
    name = connected.getpeername()
    return f"ipv6:[{name[0]}]:{name[1]}" if connected.family == socket.AF_INET6 else f"ipv4:{name[0]}:{name[1]}"
