"""The server inside a program: `tpy.Server`, with or without ports.

The server runs in its own thread, with the nursery tree of `tpy.assembly`; programs in plain threads, on asyncio and on Trio
use it alike. Read in this order: server.py (a server from start to stop), model.py (requests), calls.py (how a request crosses
between the threads), engine_thread.py (the server's thread), options.py and tensors.py (what a request
is made of), functions.py (models that are functions of the program).
"""

from tpy.embedded.model import Model, Response
from tpy.embedded.server import Server

__all__ = ["Model", "Response", "Server"]
