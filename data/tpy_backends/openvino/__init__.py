"""The openvino backend: OpenVINO's IR (model.xml with model.bin), and the files of other frameworks that OpenVINO reads.

The parts, in the order to read them: `settings` (parameters), `network` (a file as OpenVINO reads it, with its batch dimension),
`tensors` (arrays that go in and out), `program` (one infer request), `model` and `backend`. What does not depend on OpenVINO is
in the modules beside this package: `signature`, `completion`, `validation`, `named_tensors`.

`openvino` is imported by `backend` and what that imports, when the first model names this backend.
"""

from __future__ import annotations

from typing import Final

from tpy.backend import Backend, BackendSettings
from tpy_data.backends.creation import Needs, importing, without_module

__all__ = ["create"]

NEEDS: Final = Needs("OpenVINO", ("openvino",), extra="openvino")


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when OpenVINO is not installed, InvalidArgument for a bad setting."""
    # OpenVINO sends an event to its maker when it is imported, and writes an id into the user's home, by this module where it is
    # installed, as pip does. No environment variable of it says no, except those of CI systems.
    with importing(NEEDS, name=settings.name), without_module("openvino_telemetry"):
        from tpy_backends.openvino.model import openvino_backend
    return openvino_backend(settings)
