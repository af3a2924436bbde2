"""Describes the model of a configuration to clients, and what one is answered that asked for an output which the model did not
make: an error, or the others, as in Triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tpy.config.model_config import ModelConfig
from tpy.messages.models import ModelDescription, TensorDescription

PARAMETER: Final = "TPY_MISSING_OUTPUTS"
"""The model parameter that says so."""

ERROR: Final = "error"
LEAVE_OUT: Final = "leave_out"
VALUES: Final = (ERROR, LEAVE_OUT)


def requires_outputs(config: ModelConfig) -> bool:
    """Returns True if each response must have what was asked for. Responses of decoupled models may have any part of it, and what
    an ensemble's members did not make is Triton's affair there."""
    if config.decoupled or config.ensemble_scheduling is not None:
        return False
    return config.parameter(PARAMETER, ERROR) != LEAVE_OUT


def describe(
    config: ModelConfig,
    version: int,
    labels: Mapping[str, tuple[str, ...]] | None = None,
    *,
    namespace: str = "",
    copies_inputs: bool = False,
    gpus: tuple[int, ...] = (),
) -> ModelDescription:
    """A served version as metadata and request checks see it: shapes are `dims`, never `reshape`, with a leading -1 when the
    model batches. `labels` are the lines of each output's label file, by output name; `gpus` are the GPUs in whose memory inputs
    may stay."""
    batch = (-1,) if config.max_batch_size > 0 else ()
    inputs = tuple(
        TensorDescription(
            name=tensor.name,
            datatype=tensor.data_type,
            shape=batch + tensor.dims,
            optional=tensor.optional,
            ragged=tensor.allow_ragged_batch,
        )
        for tensor in config.input
    )
    outputs = tuple(
        TensorDescription(
            name=tensor.name,
            datatype=tensor.data_type,
            shape=batch + tensor.dims,
            labels=(labels or {}).get(tensor.name, ()),
        )
        for tensor in config.output
    )
    return ModelDescription(
        name=config.name,
        version=version,
        platform=config.platform or config.backend,
        max_batch_size=config.max_batch_size,
        decoupled=config.decoupled,
        inputs=inputs,
        outputs=outputs,
        input_by_name={tensor.name: tensor for tensor in inputs},
        output_by_name={tensor.name: tensor for tensor in outputs},
        namespace=namespace,
        requires_outputs=requires_outputs(config),
        copies_inputs=copies_inputs,
        gpus=gpus,
    )
