"""Fills in a configuration from what a pipeline says, and checks the two against each other, with the texts of Triton's backend.

A model batches, unless its configuration says `max_batch_size: 0`. Then the first dimension of its tensors is the batch of
the pipeline, and part of the configuration's dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from tpy.config import ModelConfig
from tpy.config.model_config import DynamicBatching, ModelInput, ModelOutput, TensorReshape
from tpy.errors import InvalidArgument
from tpy.messages import DataType
from tpy_backends.dali.description import PipelineDescription, PipelineTensor
from tpy_backends.signature import VARIABLE

AnyTensor = TypeVar("AnyTensor", ModelInput, ModelOutput)


def complete(config: ModelConfig, pipeline: PipelineDescription, *, batches: bool) -> ModelConfig:
    """Fill in the batch size, a batcher, inputs, and outputs, and whatever the listed ones leave out. Outputs go by their
    order; a configuration may call them as it likes. Raises InvalidArgument for a contradiction."""
    _require_known_inputs(config, pipeline)
    known = {given.name: given for given in config.input}
    completed = {}
    for described in pipeline.inputs:
        given = known.get(described.name)
        ragged = given is None and batches
        completed[described.name] = _completed(
            given or ModelInput(name=described.name, allow_ragged_batch=ragged), described, batches=batches
        )
    if len(config.output) > len(pipeline.outputs):
        raise _other_number_of_outputs(config, pipeline)
    outputs = [
        _completed(given, described, batches=batches)
        for given, described in zip(_padded(config.output, pipeline.outputs), pipeline.outputs, strict=True)
    ]
    in_order = [*(each.name for each in config.input), *(each.name for each in pipeline.inputs if each.name not in known)]
    changes = {
        "input": tuple(completed[name] for name in in_order),
        "output": tuple(outputs),
        "max_batch_size": (config.max_batch_size or pipeline.max_batch_size) if batches else 0,
    }
    if batches and config.dynamic_batching is None and config.sequence_batching is None:
        changes["dynamic_batching"] = DynamicBatching()
    return msgspec.structs.replace(config, **changes)


def validate(config: ModelConfig, pipeline: PipelineDescription) -> None:
    """Raise InvalidArgument for the first thing of the configuration that does not fit the pipeline, and for a pipeline that
    takes no requests."""
    if not pipeline.inputs:
        raise InvalidArgument(
            f"the pipeline of model '{config.name}' has no inputs: requests come in by fn.external_source(name=...) and fn.inputs"
        )
    _require_known_inputs(config, pipeline)
    batches = config.max_batch_size > 0
    given = {each.name: each for each in config.input}
    for described in pipeline.inputs:
        if described.name not in given:
            raise InvalidArgument(f'Missing config for "{described.name}" input.')
        _validate(given[described.name], described, batches=batches)
    if len(config.output) != len(pipeline.outputs):
        raise _other_number_of_outputs(config, pipeline)
    for output, described in zip(config.output, pipeline.outputs, strict=True):
        _validate(output, described, batches=batches)


def _padded(given: Sequence[ModelOutput], described: Sequence[PipelineTensor]) -> list[ModelOutput]:
    return [*given, *(ModelOutput(name=each.name) for each in described[len(given) :])]


def _completed(given: AnyTensor, described: PipelineTensor, *, batches: bool) -> AnyTensor:
    datatype = given.data_type
    if datatype is DataType.INVALID:
        datatype = described.datatype or DataType.INVALID
    dims, reshape = given.dims, given.reshape
    if described.dimensions is not None and not dims:
        dims = _dims(described.dimensions, batches=batches)
        if not dims:  # of scalars: dims may not be empty
            dims, reshape = (1,), TensorReshape(shape=())
    return msgspec.structs.replace(given, name=given.name or described.name, data_type=datatype, dims=dims, reshape=reshape)


def _validate(given: ModelInput | ModelOutput, described: PipelineTensor, *, batches: bool) -> None:
    if given.data_type is DataType.INVALID:
        raise InvalidArgument(f'Missing data_type config for "{given.name}"')
    if given.data_type is DataType.BYTES and isinstance(given, ModelInput):
        _validate_strings(given, described, batches=batches)
    elif described.datatype is not None and given.data_type is not described.datatype:
        raise InvalidArgument(
            f'Mismatch of data_type config for "{given.name}".\nData type defined in config: {given.data_type.config_name}\n'
            f"Data type defined in pipeline: {described.datatype.config_name}"
        )
    if not given.dims:
        raise InvalidArgument(f'Missing dims config for "{given.name}"')
    if given.data_type is DataType.BYTES:
        return
    dims = given.dims if given.reshape is None else given.reshape.shape
    wanted = len(dims) if described.dimensions is None else len(_dims(described.dimensions, batches=batches))
    if len(dims) != wanted:
        raise InvalidArgument(
            f'Mismatch in number of dimensions for "{given.name}"\nNumber of dimensions defined in config: {len(dims)}\n'
            f"Number of dimensions defined in pipeline: {wanted}"
        )


def _validate_strings(given: ModelInput, described: PipelineTensor, *, batches: bool) -> None:
    """Strings go into a pipeline as bytes, each a sample with its own length."""
    wanted = (1,) if batches else (VARIABLE,)
    if given.dims != wanted or described.datatype not in (None, DataType.UINT8) or described.dimensions not in (None, 1):
        raise InvalidArgument(
            f"input '{given.name}' of TYPE_STRING needs dims: [ {wanted[0]} ], and a pipeline whose input is of UINT8 and has "
            "one dimension: each string is a sample"
        )


def _dims(dimensions: int, *, batches: bool) -> tuple[int, ...]:
    """Of a sample, or of the pipeline's whole batch."""
    return (VARIABLE,) * (dimensions if batches else dimensions + 1)


def _require_known_inputs(config: ModelConfig, pipeline: PipelineDescription) -> None:
    names = {each.name for each in pipeline.inputs}
    for given in config.input:
        if given.name not in names:
            raise InvalidArgument(
                f"Configuration file contains config for {given.name} but such input is not present in the pipeline. "
                f"Its inputs are: {', '.join(sorted(names)) or 'none'}."
            )


def _other_number_of_outputs(config: ModelConfig, pipeline: PipelineDescription) -> InvalidArgument:
    return InvalidArgument(
        "The number of outputs specified in the DALI pipeline and the configuration file do not match.\n"
        f"Model config outputs: {len(config.output)}\nPipeline outputs: {len(pipeline.outputs)}"
    )
