"""tpy: a Triton-compatible inference server on structured concurrency.

Start reading at `tpy.assembly` (the nursery tree of the whole server on one screen), then `tpy.services` (what
frontends may ask for), `tpy.state` (what the two planes share) and `tpy.backend` (what a backend must do).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpy.embedded import Server

__all__ = ["Server", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`Server`, the server inside a program, is imported when it is asked for: every worker imports this package, too."""
    if name == "Server":
        return import_module("tpy.embedded").Server
    raise AttributeError(f"module 'tpy' has no attribute '{name}'")
