"""The onnxruntime backend: ONNX models through ONNX Runtime's Python package.

Decides what a model's file says about its configuration (`completion`), whether the two fit (`validation`), and how sessions are
made (`settings`, `providers`). One session per device serves all instances of a version: sessions are thread-safe, so weights
are in memory once, and a change of instance counts loads nothing. `onnxruntime` itself is imported by `session` only, when
the first model names this backend.
"""

from __future__ import annotations

from typing import Final

from tpy.backend import Backend, BackendSettings
from tpy_data.backends.creation import Needs, importing

__all__ = ["create"]

NEEDS: Final = Needs(
    "ONNX Runtime",
    ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"),
    advice="`pip install onnxruntime`, or with `pip install onnxruntime-gpu` for NVIDIA GPUs",
)


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when no ONNX Runtime is installed, InvalidArgument for a bad setting."""
    with importing(NEEDS, name=settings.name):
        from tpy_backends.onnxruntime.backend import OnnxRuntimeBackend
    return OnnxRuntimeBackend(settings)
