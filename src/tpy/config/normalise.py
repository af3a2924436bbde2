"""Fills in what a configuration leaves to the server, so that nothing later has to know the defaults."""

from __future__ import annotations

from typing import Final

import msgspec

from tpy.config.model_config import (
    DynamicBatching,
    ModelConfig,
    Optimization,
    PinnedMemoryBuffer,
    SequenceBatching,
    TransactionPolicy,
    VersionPolicy,
    VersionPolicyLatest,
)

SEQUENCE_IDLE_US_DEFAULT: Final = 1_000_000
"""max_sequence_idle_microseconds of a sequence batcher that gives none."""


def normalise(config: ModelConfig, *, default_model_filename: str = "") -> ModelConfig:
    """The configuration with Triton's defaults written into it, all but instance groups (`normalise_instance_groups`).

    `default_model_filename` is the backend's own, for a configuration that names none. Doing it twice changes nothing, so it is
    done again after a backend completed a configuration.
    """
    changes: dict[str, object] = {}
    if config.version_policy is None:
        changes["version_policy"] = VersionPolicy(latest=VersionPolicyLatest(num_versions=1))
    if config.dynamic_batching is not None:
        changes["dynamic_batching"] = _dynamic(config.dynamic_batching, config.max_batch_size)
    if config.sequence_batching is not None:
        changes["sequence_batching"] = _sequence(config.sequence_batching, config.max_batch_size)
    if config.ensemble_scheduling is None:
        changes["optimization"] = _optimization(config.optimization)
        changes["default_model_filename"] = config.default_model_filename or default_model_filename
    elif config.model_transaction_policy is None:
        # Triton always answers it for ensembles; whether a step is decoupled is known only once its model is.
        changes["model_transaction_policy"] = TransactionPolicy()
    return msgspec.structs.replace(config, **changes)


def _preferred(sizes: tuple[int, ...], max_batch_size: int) -> tuple[int, ...]:
    """Without preferred sizes the largest batch is preferred."""
    return sizes if sizes or max_batch_size <= 0 else (max_batch_size,)


def _dynamic(batching: DynamicBatching, max_batch_size: int) -> DynamicBatching:
    return msgspec.structs.replace(batching, preferred_batch_size=_preferred(batching.preferred_batch_size, max_batch_size))


def _sequence(batching: SequenceBatching, max_batch_size: int) -> SequenceBatching:
    oldest = batching.oldest
    if oldest is not None:
        preferred = _preferred(oldest.preferred_batch_size, max_batch_size)
        oldest = msgspec.structs.replace(oldest, preferred_batch_size=preferred)
    return msgspec.structs.replace(
        batching,
        oldest=oldest,
        max_sequence_idle_microseconds=batching.max_sequence_idle_microseconds or SEQUENCE_IDLE_US_DEFAULT,
    )


def _optimization(optimization: Optimization | None) -> Optimization:
    optimization = optimization or Optimization()
    return msgspec.structs.replace(
        optimization,
        input_pinned_memory=optimization.input_pinned_memory or PinnedMemoryBuffer(enable=True),
        output_pinned_memory=optimization.output_pinned_memory or PinnedMemoryBuffer(enable=True),
    )
