"""Triton's in-process Python API, by tpy. NVIDIA's package of this name, where it is installed, takes precedence."""

from typing import Any, NoReturn

from tpy import __version__ as __version__
from tpy.tritonserver import *  # noqa: F403

_NO_ALLOCATORS = "outputs are given out where the model wrote them, and no allocator is asked; Triton has dropped it, too"

_REFUSED = {
    "MemoryAllocator": _NO_ALLOCATORS,
    "MemoryAllocation": _NO_ALLOCATORS,
    "default_memory_allocators": _NO_ALLOCATORS,
    "_c": "there is no binding of Triton's C interface behind this module, which is tpy's own server",
    "_api": "only the names that Triton documents are here",
}


def __getattr__(name: str) -> Any:
    _refuse(name)


def _refuse(name: str) -> NoReturn:
    why = _REFUSED.get(name)
    raise AttributeError(f"module 'tritonserver' of tpy has no '{name}'" + ("" if why is None else f": {why}"))
