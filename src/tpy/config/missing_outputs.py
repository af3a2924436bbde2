"""The answer to a client that asked for an output which the model did not make: an error, or the others, as in Triton."""

from __future__ import annotations

from typing import Final

from tpy.config.model_config import ModelConfig

PARAMETER: Final = "TPY_MISSING_OUTPUTS"
"""The model parameter that says so."""

ERROR: Final = "error"
LEAVE_OUT: Final = "leave_out"
VALUES: Final = (ERROR, LEAVE_OUT)


def requires_outputs(config: ModelConfig) -> bool:
    """Returns True if each response must have what was asked for. Responses of decoupled models may have any part of it, and what
    an ensemble's members did not make is Triton's affair there."""
    if config.decoupled or config.ensemble_scheduling is not None:
        return False
    return config.parameter(PARAMETER, ERROR) != LEAVE_OUT
