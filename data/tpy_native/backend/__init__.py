"""Runs backends that were compiled for Triton (`libtriton_NAME.so`), unmodified.

The server finds them by their file, as Triton does (`tpy_data.registry`), and runs them in worker processes unless
`isolation` says otherwise: a crash costs one instance, which comes back. The C interface that they call is `tpy_native`;
here is what implements `tpy.backend` over it.
"""

from __future__ import annotations

from tpy.backend import Backend, BackendSettings, Isolation
from tpy_native.backend.backend import NativeBackend


def create(settings: BackendSettings) -> Backend:
    """The factory. Raises what loading the library raises."""
    return NativeBackend(settings)


create.default_isolation = Isolation.PROCESS  # type: ignore[attr-defined]  # code of others may crash

__all__ = ["create"]
