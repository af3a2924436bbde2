"""What of a configuration this data plane does not do, and what it takes without doing anything. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tpy.backend import BackendCapabilities
from tpy.config import ModelConfig
from tpy.errors import Unsupported


def refuse_beyond(config: ModelConfig, capabilities: BackendCapabilities) -> None:
    """Raises Unsupported, naming the field, when the model asks for what its backend does not do."""
    if config.decoupled and not capabilities.decoupled:
        raise Unsupported(
            f"model '{config.name}' asks for what backend '{capabilities.name}' does not support: "
            "'model_transaction_policy.decoupled'"
        )


def refuse_unsupported(config: ModelConfig) -> None:
    """Raises Unsupported, naming every field that asks for something that is not done."""
    fields = unsupported(config)
    if fields:
        named = ", ".join(f"'{field}'" for field in fields)
        raise Unsupported(f"model '{config.name}' asks for what this server does not support: {named}")


def unsupported(config: ModelConfig) -> tuple[str, ...]:
    """Fields that ask for something that is not done; their paths are those of `tpy.config.Problem`."""
    return tuple(_unsupported(config))


def without_effect(config: ModelConfig) -> tuple[str, ...]:
    """Fields that are set, are accepted, and change nothing here, besides those that `tpy.config.validate` warns of."""
    return tuple(_without_effect(config))


def _unsupported(config: ModelConfig) -> Iterator[str]:
    if config.ensemble_scheduling is not None or config.platform == "ensemble":
        yield "ensemble_scheduling"
    if config.sequence_batching is not None:
        yield "sequence_batching"
    for index, entry in enumerate(config.input):
        if entry.allow_ragged_batch:
            yield f"input[{index}].allow_ragged_batch"
    if config.batch_input:
        yield "batch_input"
    if config.batch_output:
        yield "batch_output"
    if config.parameter("TRITON_BATCH_STRATEGY_PATH"):
        yield 'parameters["TRITON_BATCH_STRATEGY_PATH"]'


def _without_effect(config: ModelConfig) -> Iterator[str]:
    # Triton does the same unless it was started with --cache-config, which tpy does not have yet.
    if config.response_cache is not None and config.response_cache.enable:
        yield "response_cache"
    for index, group in enumerate(config.instance_group):
        if group.host_policy:
            yield f"instance_group[{index}].host_policy"
