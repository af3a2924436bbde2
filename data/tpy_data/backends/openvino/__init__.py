"""The openvino backend: OpenVINO's IR (model.xml with model.bin), and the files of other frameworks that OpenVINO reads.

The parts, in the order to read them: `settings` (parameters), `network` (a file as OpenVINO reads it, with its batch dimension),
`tensors` (arrays that go in and out), `program` (one infer request), `model` and `backend`. What does not depend on OpenVINO is
in the modules beside this package: `signature`, `completion`, `validation`, `named_tensors`.

`openvino` is imported by `backend` and what that imports, when the first model names this backend.
"""

from __future__ import annotations

from typing import Final

from tpy.backend import Backend, BackendSettings
from tpy_data.backends.creation import Needs, importing

__all__ = ["create"]

NEEDS: Final = Needs("OpenVINO", ("openvino",), extra="openvino")


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when OpenVINO is not installed, InvalidArgument for a bad setting."""
    with importing(NEEDS, name=settings.name):
        from tpy_data.backends.openvino.backend import openvino_backend
    return openvino_backend(settings)
