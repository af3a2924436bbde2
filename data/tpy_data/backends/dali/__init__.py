"""The dali backend: pipelines of NVIDIA DALI, serialized (`model.dali`) or as Python that is serialized at load (`dali.py`).

The parts, in the order to read them: `settings` (parameters), `description` (what a pipeline says of its inputs and outputs),
`completion` (configurations are filled in and checked by that), `source` (files and auto-serialization), `library` (DALI's C
interface), `pipeline` (one pipeline, ready to run), `instance`, `model` and `backend`. Only `library` and `pipeline` touch DALI,
which is imported when the first model names this backend.
"""

from __future__ import annotations

from tpy.backend import Backend, BackendSettings
from tpy_data.backends.creation import importing

__all__ = ["create"]


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when DALI is not installed, InvalidArgument for a bad setting."""
    wrong_library = (ImportError, OSError, AttributeError)  # the two latter for one that is not the expected one
    install = "tpy's extra `dali`, or `pip install nvidia-dali-cuda120`"
    with importing("DALI", name=settings.name, install=install, errors=wrong_library):
        from tpy_data.backends.dali.backend import DaliBackend
    return DaliBackend(settings)
