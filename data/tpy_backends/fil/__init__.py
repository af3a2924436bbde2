"""The fil backend: trees of XGBoost, LightGBM and scikit-learn, run on the CPU by treelite's inference (GTIL). The name and the
parameters are those of Triton's backend, which is FIL, the forest inference library of RAPIDS.

The parts, in the order to read them: `settings` (parameters), `lightgbm_text` (what treelite does not check), `forest` (a file as
treelite reads it, and a prediction), `backend`. What does not depend on treelite is in the modules beside this package:
`signature`, `completion`, `validation`, `named_tensors`. treelite is imported by `forest`, when the first model names this
backend.
"""

from __future__ import annotations

from typing import Final

from tpy.backend import Backend, BackendSettings
from tpy_data.backends.creation import Needs, importing

__all__ = ["create"]

NEEDS: Final = Needs("treelite", ("treelite",), extra="fil")


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when treelite is not installed, InvalidArgument for a bad setting."""
    with importing(NEEDS, name=settings.name):
        from tpy_backends.fil.backend import fil_backend
    return fil_backend(settings)
