"""The dali backend: pipelines of NVIDIA DALI, serialized (`model.dali`) or as Python that is serialized at load (`dali.py`).

The parts, in the order to read them: `settings` (parameters), `description` (what a pipeline says of its inputs and outputs),
`completion` (configurations are filled in and checked by that), `source` (files and auto-serialization), `library` (DALI's C
interface), `pipeline` (one pipeline, ready to run), `instance`, `model` and `backend`. Only `library` and `pipeline` touch DALI,
which is imported when the first model names this backend.
"""

from __future__ import annotations

from typing import Final

from tpy.backend import Backend, BackendSettings
from tpy_data.backends.creation import Needs, importing

__all__ = ["create"]

NEEDS: Final = Needs("DALI", ("nvidia-dali-cuda120", "nvidia-dali-cuda130"), extra="dali")


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when DALI is not installed, InvalidArgument for a bad setting."""
    wrong_library = (ImportError, OSError, AttributeError)  # the two latter for one that is not the expected one
    with importing(NEEDS, name=settings.name, errors=wrong_library):
        from tpy_backends.dali.backend import DaliBackend
    return DaliBackend(settings)
