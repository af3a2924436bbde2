"""The time when a model is loaded, as its parameters say: at the start, or when it is asked for."""

from __future__ import annotations

import enum
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


class UnexpectedParameter(NamedTuple):
    """A parameter with a value that says nothing here: it counts as not given, and may be the model's own."""

    name: str
    value: str
    expected: str


_SECONDS_MAX: Final = 1e9
"""Thirty years: what is counted in nanoseconds has a bound."""

_WHENS: Final = tuple(each.value for each in LoadWhen)


class LoadPolicy(NamedTuple):
    """`keep_alive_s` 0: a model that nobody uses is unloaded only for others. `resident_s_min`: it is left alone for so long."""

    when: LoadWhen
    keep_alive_s: float = 0.0
    resident_s_min: float = 0.0


def load_policy(config: ModelConfig, default: LoadWhen = LoadWhen.AT_START) -> LoadPolicy:
    """The policy of a model."""
    when = config.parameter(PARAMETER, "")
    return LoadPolicy(
        LoadWhen(when) if when in _WHENS else default,
        _seconds(config, KEEP_ALIVE_PARAMETER) or 0.0,
        _seconds(config, RESIDENT_PARAMETER) or 0.0,
    )


def unexpected_parameters(config: ModelConfig) -> list[UnexpectedParameter]:
    """The parameters of a policy whose values are not of one."""
    found = []
    when = config.parameter(PARAMETER, "")
    if when and when not in _WHENS:
        found.append(UnexpectedParameter(PARAMETER, when, f"one of {', '.join(_WHENS)}"))
    for name in (KEEP_ALIVE_PARAMETER, RESIDENT_PARAMETER):
        if _seconds(config, name) is None:
            found.append(UnexpectedParameter(name, config.parameter(name, ""), "a number of seconds, 0 to 1,000,000,000"))
    return found


def _seconds(config: ModelConfig, name: str) -> float | None:
    try:
        seconds = float(config.parameter(name, "0"))
    except ValueError:
        return None
    return seconds if 0 <= seconds <= _SECONDS_MAX else None
