"""The litert backend: `.tflite` files, by LiteRT, which was TensorFlow Lite. `armnn_tflite`, the name of Triton's backend for
them, means it, too.

`interpreter` reads a file and runs it; `backend` completes configurations and loads models. What does not depend on LiteRT is in
the modules beside this package: `signature`, `completion`, `validation`, `named_tensors`. LiteRT is imported by `interpreter`,
when the first model names this backend.
"""

from __future__ import annotations

from typing import Final

from tpy.backend import Backend, BackendSettings
from tpy_data.backends.creation import Needs, importing

__all__ = ["create"]

NEEDS: Final = Needs("LiteRT", ("ai-edge-litert",), extra="litert")


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when LiteRT is not installed, InvalidArgument for a bad setting."""
    with importing(NEEDS, name=settings.name):
        from tpy_backends.litert.backend import litert_backend
    return litert_backend(settings)
