"""Makes the core that a model's configuration asks for. Cores that few models have are imported for the first one, by the
thread that loads it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tpy.config.model_config import ModelConfig
from tpy.errors import Unsupported
from tpy_data.schedulers.core.contract import BatchStrategy, SchedulerCore
from tpy_data.schedulers.core.default import DefaultCore
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import NO_START_DELAY, StartDelay, dynamic_options

if TYPE_CHECKING:
    from tpy.messages import CurvePoint
    from tpy_data.schedulers.core.sequence_core import SequenceCore
    from tpy_data.schedulers.core.sequence_options import SequenceOptions
    from tpy_data.schedulers.core.tenants import Tenants


def make_core(
    config: ModelConfig,
    delay: StartDelay = NO_START_DELAY,
    strategy: BatchStrategy | None = None,
    *,
    engine: bool = False,
    tenants: Tenants | None = None,
    curve: Iterable[CurvePoint] = (),
) -> SchedulerCore:
    """The core for a validated configuration. A model without a configured scheduler starts without `delay`. A `strategy` is for
    dynamic batching only. `engine`: the model is an engine's, whose `dynamic_batching` says how its requests are queued.
    `tenants` share the queue, but for sequence models. `curve` is what is known of the costs of batches, if they are tuned.

    Raises Unsupported, naming the field, for a scheduler that this server does not offer.
    """
    name = config.name
    if config.ensemble_scheduling is not None or config.platform == "ensemble":
        raise Unsupported(f"'ensemble_scheduling' of model '{name}' is not supported by this server")
    if "batching" in config.parameters and not engine:
        if "max_padding" in config.parameters:
            from tpy_data.schedulers.core.length_cores import make_length_core  # few models batch by length

            if (by_length := make_length_core(config, tenants, delay, strategy)) is not None:
                return by_length
        from tpy_data.schedulers.core.tuned_cores import make_tuned_core  # most models are not tuned

        if (tuned := make_tuned_core(config, tenants, delay, strategy, curve)) is not None:
            return tuned
    if tenants is not None and config.sequence_batching is None:
        from tpy_data.schedulers.core.fair_cores import make_fair_core  # most servers have no tenants

        return make_fair_core(config, tenants, delay, strategy, engine=engine)
    if engine:
        if config.sequence_batching is not None:
            raise Unsupported(f"'sequence_batching' of model '{name}' is not supported: its engine schedules sequences of tokens")
        from tpy_data.schedulers.core.engine_core import EngineCore, engine_options  # few servers need it

        return EngineCore(engine_options(config))
    if config.sequence_batching is None and config.dynamic_batching is None:
        return DefaultCore()
    if config.sequence_batching is not None:
        from tpy_data.schedulers.core.sequence_options import sequence_options  # few models have sequences

        return sequence_core(sequence_options(config), delay)
    return DynamicCore(dynamic_options(config), delay, strategy)


def sequence_core(options: SequenceOptions, delay: StartDelay = NO_START_DELAY) -> SequenceCore:
    """The core of sequences for these options, with the batchers of their strategy."""
    from tpy_data.schedulers.core.sequence_batcher import DirectBatcher, OldestBatcher
    from tpy_data.schedulers.core.sequence_core import SequenceCore
    from tpy_data.schedulers.core.sequence_options import DirectOptions

    strategy = options.strategy
    if isinstance(strategy, DirectOptions):
        return SequenceCore(options, lambda: DirectBatcher(strategy), delay)
    return SequenceCore(options, lambda: OldestBatcher(strategy, delay))
