"""A model that hangs: whether it says that it is not ready."""

from __future__ import annotations

import math
from typing import Final

from tpy.config.model_config import ModelConfig

PARAMETER: Final = "TPY_NOT_READY_AFTER_SECONDS"
"""The model parameter that says after how long; without it a model that hangs is ready, as in Triton."""


def not_ready_after_s(config: ModelConfig) -> float:
    """Returns the seconds after which a version is not ready whose instances all execute without finishing a batch; infinity
    without the parameter. Raises ValueError when it is not a positive number."""
    text = config.parameter(PARAMETER, "")
    if not text:
        return math.inf
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds
