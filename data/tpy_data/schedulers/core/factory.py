"""Which core a model's configuration asks for."""

from __future__ import annotations

from tpy.config.model_config import ModelConfig
from tpy.errors import Unsupported
from tpy_data.schedulers.core.contract import SchedulerCore
from tpy_data.schedulers.core.default import DefaultCore


def make_core(config: ModelConfig) -> SchedulerCore:
    """The core for a validated configuration. Raises Unsupported, naming the field, for a scheduler that is not offered."""
    for field in ("sequence_batching", "ensemble_scheduling", "dynamic_batching"):
        if getattr(config, field) is not None:
            raise Unsupported(f"'{field}' of model '{config.name}' is not supported by this server")
    return DefaultCore()
