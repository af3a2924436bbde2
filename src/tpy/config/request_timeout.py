"""The meaning of a request's `timeout`: a rule for the model's queue (as in Triton), or the deadline of the whole request."""

from __future__ import annotations

import enum
from typing import Final

from tpy.config.model_config import ModelConfig

PARAMETER: Final = "TPY_REQUEST_TIMEOUT"
"""The model parameter that says so; without it, --request-timeout does."""


class RequestTimeout(enum.Enum):
    """The values of the parameter and of the flag."""

    QUEUE = "queue"
    """It shortens the time in a queue whose policy allows that."""
    ENFORCE = "enforce"
    """The request ends with an error when it is over, wherever it is."""


def enforces_timeouts(config: ModelConfig, default: RequestTimeout) -> bool:
    """Returns True if the timeouts of requests to this model are deadlines. `config` is validated."""
    return RequestTimeout(config.parameter(PARAMETER, default.value)) is RequestTimeout.ENFORCE
