"""One transport under all ports: listening sockets, connections, TLS, fair turns, time to drain.

It moves bytes and knows no protocol. Read in this order: serving.py (a port from its first connection to its last), wire.py and
receiver.py (the bytes of one connection, and who takes them; `tpy.reactor` reads all that have something to read); below them
listening.py (addresses), accepting.py (the accept loop), tls.py and tls_wire.py (imported for ports that speak TLS), turns.py.

A protocol has a `Port`, and a coroutine that serves one wire of it.
"""

from tpy.demand import Demand
from tpy.frontends.transport.listening import UNIX, BoundAddress, address_of, check, close, listen
from tpy.frontends.transport.receiver import Discarding, Receiver
from tpy.frontends.transport.serving import Connection, Ends, ListenOptions, Port, serve_port
from tpy.frontends.transport.tls_options import TlsOptions
from tpy.frontends.transport.turns import LoopTurns
from tpy.frontends.transport.wire import SocketWire, Wire
from tpy.sending import GONE, Pieces, size_of, unsent

__all__ = [
    "GONE",
    "UNIX",
    "BoundAddress",
    "Connection",
    "Demand",
    "Discarding",
    "Ends",
    "ListenOptions",
    "LoopTurns",
    "Pieces",
    "Port",
    "Receiver",
    "SocketWire",
    "TlsOptions",
    "Wire",
    "address_of",
    "check",
    "close",
    "listen",
    "serve_port",
    "size_of",
    "unsent",
]
