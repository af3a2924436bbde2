"""The dali backend: pipelines of NVIDIA DALI, serialized (`model.dali`) or as Python that is serialized at load (`dali.py`).

The parts, in the order to read them: `settings` (parameters), `description` (what a pipeline says of its inputs and outputs),
`completion` (configurations are filled in and checked by that), `source` (files and auto-serialization), `library` (DALI's C
interface), `pipeline` (one pipeline, ready to run), `instance`, `model` and `backend`. Only `library` and `pipeline` touch DALI,
which is imported when the first model names this backend.
"""

from __future__ import annotations

from tpy.backend import Backend, BackendSettings
from tpy.errors import Unavailable

__all__ = ["create"]


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when DALI is not installed, InvalidArgument for a bad setting."""
    try:
        from tpy_data.backends.dali.backend import DaliBackend
    except (ImportError, OSError, AttributeError) as error:  # the two latter for a library that is not the expected one
        raise Unavailable(
            f"backend '{settings.name}' needs DALI, which cannot be imported ({error}); install it with tpy's extra `dali`, "
            "or `pip install nvidia-dali-cuda120`"
        ) from error
    return DaliBackend(settings)
