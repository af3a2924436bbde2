"""Isolation: whether the instances of a model run in processes of their own, or in threads of the server's.

A backend that is to run in processes unless a configuration says otherwise, because its libraries do not bear others beside them,
says so on its factory: `create.default_isolation = Isolation.PROCESS`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from tpy.config import ModelConfig
from tpy.errors import InvalidArgument

ISOLATION: Final = "isolation"
"""The parameter of a model, and the key of `--backend-config`."""

_EARLIER_NAME: Final = "TPY_PYTHON_ISOLATION"
"""The parameter's name when only Python models had it."""


class Isolation(enum.Enum):
    """The place where instances run."""

    PROCESS = "process"
    """Each in a worker process: a crash ends that instance, and nothing else."""
    THREAD = "thread"
    """Each in a thread of the server's process."""


def isolation_of(config: ModelConfig, settings: Mapping[str, str]) -> Isolation | None:
    """Reads the model's parameters, else its backend's settings; None for nothing. Raises InvalidArgument for another word."""
    name = ISOLATION if config.parameter(ISOLATION) or not config.parameter(_EARLIER_NAME) else _EARLIER_NAME
    text = config.parameter(name)
    where = f"parameter {name} of model '{config.name}'"
    if not text:
        text, where = settings.get(ISOLATION, ""), f"--backend-config={config.backend},{ISOLATION}"
    if not text:
        return None
    try:
        return Isolation(text)
    except ValueError:
        raise InvalidArgument(f"{where} is '{text}', expected 'process' or 'thread'") from None


def default_isolation(factory: object) -> Isolation:
    """That of a backend whose factory this is."""
    said = getattr(factory, "default_isolation", Isolation.THREAD)
    return said if isinstance(said, Isolation) else Isolation.THREAD
