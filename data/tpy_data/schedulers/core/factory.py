"""Which core a model's configuration asks for."""

from __future__ import annotations

from tpy.config.model_config import ModelConfig
from tpy.errors import Unsupported
from tpy_data.schedulers.core.contract import SchedulerCore
from tpy_data.schedulers.core.default import DefaultCore
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import dynamic_options
from tpy_data.schedulers.core.sequence_batcher import SlotBatcher
from tpy_data.schedulers.core.sequence_core import SequenceCore
from tpy_data.schedulers.core.sequence_direct import DirectBatcher
from tpy_data.schedulers.core.sequence_oldest import OldestBatcher
from tpy_data.schedulers.core.sequence_options import DirectOptions, SequenceOptions, sequence_options


def make_core(config: ModelConfig) -> SchedulerCore:
    """The core for a validated configuration.

    Raises Unsupported, naming the field, for a scheduler or a batching strategy that this server does not offer.
    """
    name = config.name
    if config.ensemble_scheduling is not None or config.platform == "ensemble":
        raise Unsupported(f"'ensemble_scheduling' of model '{name}' is not supported by this server")
    if config.sequence_batching is None and config.dynamic_batching is None:
        return DefaultCore()
    if config.parameter("TRITON_BATCH_STRATEGY_PATH"):
        raise Unsupported(f"parameter 'TRITON_BATCH_STRATEGY_PATH' of model '{name}' is not supported by this server")
    if config.sequence_batching is not None:
        return sequence_core(sequence_options(config))
    return DynamicCore(dynamic_options(config))


def sequence_core(options: SequenceOptions) -> SequenceCore:
    """The core of sequences for these options, with the batchers of their strategy."""
    strategy = options.strategy

    def batcher() -> SlotBatcher:
        return DirectBatcher(strategy) if isinstance(strategy, DirectOptions) else OldestBatcher(strategy)

    return SequenceCore(options, batcher)
