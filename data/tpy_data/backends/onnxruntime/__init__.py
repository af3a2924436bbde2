"""The onnxruntime backend: ONNX models through ONNX Runtime's Python package.

Decides what a model's file says about its configuration (`completion`), whether the two fit (`validation`), and how sessions are
made (`settings`, `providers`). One session per device serves all instances of a version: sessions are thread-safe, so weights
are in memory once, and a change of instance counts loads nothing. `onnxruntime` itself is imported by `session` only, when
the first model names this backend.
"""

from __future__ import annotations

from tpy.backend import Backend, BackendSettings
from tpy.errors import Unavailable

__all__ = ["create"]


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when no ONNX Runtime is installed, InvalidArgument for a bad setting."""
    try:
        from tpy_data.backends.onnxruntime.backend import OnnxRuntimeBackend
    except ImportError as error:
        raise Unavailable(
            f"backend '{settings.name}' needs ONNX Runtime, which cannot be imported ({error}); "
            "install it with `pip install onnxruntime`, or with `pip install onnxruntime-gpu` for NVIDIA GPUs"
        ) from error
    return OnnxRuntimeBackend(settings)
