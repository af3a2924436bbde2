"""The engine's services for frontends in other processes, over a Unix socket and shared memory.

core/           the protocol, sans-IO: read its __init__ first
wire.py         bytes of a connection; link.py: messages on it, one write per turn of the loop
memory.py       shared memory for tensors
publisher.py    sends frontend processes the serving table
engine_side.py  answers one frontend process with the services of this one
processes.py    starts, watches and replaces frontend processes
frontend_side.py  the services, in a frontend process
services.py     the same, as frontends see them
finished.py     observed requests: whom they came from, how they ended

It decides nothing about requests or protocols of clients.
"""

from tpy.remote.frontend_side import EngineGone, EngineLink, open_engine
from tpy.remote.processes import FrontendCommand, run_frontend_processes
from tpy.remote.services import remote_services

__all__ = ["EngineGone", "EngineLink", "FrontendCommand", "open_engine", "remote_services", "run_frontend_processes"]
