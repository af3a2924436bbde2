"""The tensorrt backend: serialized engines of TensorRT, on GPUs.

The parts, in the order to read them: `library` (TensorRT's Python package, or that of TensorRT for RTX: the same API, taken as a
value, so that tests can give a recorded one), `signature` (what an engine takes and gives, and its optimization profiles), `plan`
(reads a file, and says in a sentence why it cannot be used), `settings`, `validation` and `completion` (the configuration against
the signature), `profiles` (which optimization profile a batch takes), `graph_specs` (which CUDA graphs are captured, and which
one a batch takes), `buffers` (device memory and the copies to and from it), `execution` (contexts, and one run), `instance`,
`model` and `backend`.

Nothing here imports TensorRT before the first model names this backend.
"""

from __future__ import annotations

from typing import Final

from tpy.backend import Backend, BackendSettings
from tpy_data.backends.creation import Needs

__all__ = ["create"]

NEEDS: Final = Needs("TensorRT", ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-rtx-cu13"), extra="tensorrt")


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when TensorRT is not installed, InvalidArgument for a bad setting."""
    from tpy_backends.tensorrt.backend import TensorRTBackend
    from tpy_backends.tensorrt.library import find_library
    from tpy_backends.tensorrt.settings import backend_config

    config = backend_config(settings.config)
    return TensorRTBackend(settings, config, find_library(settings.name, config.library))
