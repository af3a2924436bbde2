"""The time when a model is loaded, as its parameters say: at the start, or when it is asked for."""

from __future__ import annotations

import enum
import math
from typing import Final, NamedTuple

from tpy.config.model_config import ModelConfig

PARAMETER: Final = "load"
"""The model parameter that says when; without it --model-control-mode does."""

KEEP_ALIVE_PARAMETER: Final = "keep_alive_seconds"
RESIDENT_PARAMETER: Final = "min_resident_seconds"


class LoadWhen(enum.Enum):
    """The time when a model is loaded."""

    AT_START = "at_start"
    """With the server, and it stays."""
    WARM = "warm"
    """With the server where there is room, and on demand from then on."""
    ON_DEMAND = "on_demand"
    """As soon as a request asks for it."""


class UnexpectedParameter(ValueError):
    """A parameter has a value that it cannot have."""

    def __init__(self, name: str, value: str, expected: str) -> None:
        super().__init__(f"unexpected value '{value}' of parameter {name}, expected {expected}")
        self.name = name
        self.value = value
        self.expected = expected


class LoadPolicy(NamedTuple):
    """`keep_alive_s` 0: a model that nobody uses is unloaded only for others. `resident_s_min`: it is left alone for so long."""

    when: LoadWhen
    keep_alive_s: float = 0.0
    resident_s_min: float = 0.0


def load_policy(config: ModelConfig, default: LoadWhen = LoadWhen.AT_START) -> LoadPolicy:
    """The policy of a model. Raises UnexpectedParameter."""
    text = config.parameter(PARAMETER, "")
    known = [each.value for each in LoadWhen]
    if text and text not in known:
        raise UnexpectedParameter(PARAMETER, text, ", ".join(known))
    when = LoadWhen(text) if text else default
    return LoadPolicy(when, _seconds(config, KEEP_ALIVE_PARAMETER), _seconds(config, RESIDENT_PARAMETER))


def _seconds(config: ModelConfig, name: str) -> float:
    text = config.parameter(name, "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UnexpectedParameter(name, text, "a number of seconds, 0 or more")
    return seconds
