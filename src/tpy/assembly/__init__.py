"""The composition root: makes the parts, hands each what it needs, and owns the nursery tree of the whole server.

It decides lifetimes, and nothing about models, requests or protocols. Start with `server.py`: the tree is on one screen.
"""

from tpy.assembly.options import BackendOptions, MetricsOptions, ServerOptions
from tpy.assembly.server import Outcome, Running, Stop, run_server

__all__ = ["BackendOptions", "MetricsOptions", "Outcome", "Running", "ServerOptions", "Stop", "run_server"]
