"""The pytorch backend: TorchScript, exported programs and AOTInductor packages in the server, `model.py` in a Python worker.

The parts, in the order to read them: `archive` (of which kind a file is), `signature` (what a model takes and gives), `names`
(which tensor of a configuration is which argument or result), `validation` and `completion` (the configuration against the
signature), `settings` (parameters), `script`, `exported` and `package` with `call_spec` (one program for each kind of file),
`transfer` (how tensors get to a device and back), `instance`, `model` and `backend`. `runtime` is what a worker runs for
`runtime: "model.py"`.

`torch` is imported by `backend` and what that imports, when the first model names this backend.
"""

from __future__ import annotations

from typing import Final

from tpy.backend import Backend, BackendSettings
from tpy_data.backends.creation import Needs, importing

__all__ = ["create"]

NEEDS: Final = Needs("PyTorch", ("torch",), extra="torch")


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when PyTorch is not installed, InvalidArgument for a bad setting."""
    with importing(NEEDS, name=settings.name):
        from tpy_backends.pytorch.backend import PyTorchBackend
    return PyTorchBackend(settings)
