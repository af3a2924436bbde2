"""The fields of a configuration that this data plane refuses, and the ones that it accepts without effect. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tpy.backend import BackendCapabilities
from tpy.config import ModelConfig
from tpy.errors import Unsupported


def refuse_beyond(config: ModelConfig, capabilities: BackendCapabilities) -> None:
    """Raises Unsupported, naming the field, when the model asks for what its backend does not do."""
    ragged = next((index for index, entry in enumerate(config.input) if entry.allow_ragged_batch), None)
    if ragged is not None and not capabilities.ragged:
        raise Unsupported(
            f"model '{config.name}' asks for what backend '{capabilities.name}' does not support: "
            f"'input[{ragged}].allow_ragged_batch'"
        )
    if config.sequence_batching is not None and config.sequence_batching.state and not capabilities.implicit_state:
        raise Unsupported(
            f"model '{config.name}' asks for what backend '{capabilities.name}' does not support: 'sequence_batching.state'"
        )
    if config.decoupled and not capabilities.decoupled:
        raise Unsupported(
            f"model '{config.name}' asks for what backend '{capabilities.name}' does not support: "
            "'model_transaction_policy.decoupled'"
        )


def without_effect(config: ModelConfig, capabilities: BackendCapabilities | None = None) -> tuple[str, ...]:
    """Fields that are set, accepted, and change nothing here, besides the ones that `tpy.config.validate` warns of. Without
    `capabilities`, only the ones that every backend ignores."""
    return tuple(_without_effect(config, capabilities))


def _without_effect(config: ModelConfig, capabilities: BackendCapabilities | None) -> Iterator[str]:
    if capabilities is not None and not capabilities.secondary_devices:
        for index, group in enumerate(config.instance_group):
            if group.secondary_devices:
                yield f"instance_group[{index}].secondary_devices"
    if capabilities is not None and not capabilities.batch_io:
        # The model makes of its batch what it likes.
        if config.batch_input:
            yield "batch_input"
        if config.batch_output:
            yield "batch_output"
