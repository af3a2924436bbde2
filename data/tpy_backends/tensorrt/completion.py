"""Auto-completion: what Triton's tensorrt backend fills in from an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from tpy.backend import state_specs
from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput, ModelOutput, TensorReshape
from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType
from tpy_backends.completion import dims_of, made_by_server, with_batching
from tpy_backends.signature import VARIABLE
from tpy_backends.tensorrt.signature import EngineSignature, EngineTensor
from tpy_backends.tensorrt.validation import check_names

_Tensor = TypeVar("_Tensor", ModelInput, ModelOutput)


def complete(config: ModelConfig, signature: EngineSignature) -> ModelConfig:
    """Fill in the batch size, a batcher, lists of inputs and outputs that are empty, and, in lists that are not, missing
    datatypes, dims and marks of shape tensors.

    Raises InvalidArgument or Internal, with Triton's texts, for a contradiction.
    """
    check_names(config, signature)
    config = _with_batching(config, signature)
    batches = config.max_batch_size > 0
    made = made_by_server(config)
    inputs, outputs = config.input, config.output
    if not inputs:
        inputs = tuple(_new(ModelInput, info, batches=batches) for name, info in signature.inputs.items() if name not in made)
    else:
        inputs = tuple(_filled(each, signature.inputs, batches=batches) for each in inputs)
    if not outputs:
        kept = {spec.output_name for spec in state_specs(config)}
        outputs = tuple(_new(ModelOutput, info, batches=batches) for name, info in signature.outputs.items() if name not in kept)
    else:
        outputs = tuple(_filled(each, signature.outputs, batches=batches) for each in outputs)
    return msgspec.structs.replace(config, input=inputs, output=outputs)


def _with_batching(config: ModelConfig, signature: EngineSignature) -> ModelConfig:
    largest = _largest_batch(config, signature)
    hint = _batching_hint(config, signature)
    if hint and not largest:
        raise Internal(
            f"autofill failed for model '{config.name}': model tensor shape configuration hints for dynamic batching but the "
            "underlying engine doesn't support batching."
        )
    if hint is False:
        largest = 0
    if config.max_batch_size > largest:
        raise Internal(
            f"autofill failed for model '{config.name}': configuration specified max-batch {config.max_batch_size} but TensorRT "
            f"engine only supports max-batch {largest}"
        )
    return with_batching(config, largest)


def _largest_batch(config: ModelConfig, signature: EngineSignature) -> int:
    """The largest first dimension that all inputs may have in one of the profiles of the instance groups; 0 for an engine that
    does not batch: whose inputs have no first dimension, or one of a size that is fixed and not 1."""
    for info in signature.inputs.values():
        if not info.is_shape_tensor and info.shape[:1] not in ((VARIABLE,), (1,)):
            return 0
    sizes = [0]
    for index in profile_indices(config, len(signature.profiles)):
        profile = signature.profiles[index]
        firsts = [
            (profile.values[name] if info.is_shape_tensor else profile.shapes[name]).largest[:1]
            for name, info in signature.inputs.items()
        ]
        if firsts and all(firsts):
            sizes.append(min(first[0] for first in firsts))
    return max(sizes)


def profile_indices(config: ModelConfig, count: int) -> list[int]:
    """The profiles that the instance groups name, 0 where they name none. Raises Internal for one that the engine has not."""
    named = [profile for group in config.instance_group for profile in group.profile]
    for profile in named:
        if int(profile) >= count:
            raise Internal(
                f"unable to autofill for '{config.name}', configuration specified invalid profile {profile} . Number of profiles "
                f"supported by TensorRT engine: {count}"
            )
    return sorted({int(profile) for profile in named} or {0})


def _batching_hint(config: ModelConfig, signature: EngineSignature) -> bool | None:
    """Returns True when the configuration's tensors have one dimension less than the engine's, or are ragged; False when they
    have as many; None when none has dims. Raises Internal when they differ in that."""
    found: bool | None = None
    pairs: Iterable[tuple[Sequence[ModelInput | ModelOutput], Mapping[str, EngineTensor]]] = (
        (config.input, signature.inputs),
        (config.output, signature.outputs),
    )
    for tensors, infos in pairs:
        for tensor in tensors:
            if isinstance(tensor, ModelInput) and tensor.allow_ragged_batch:
                return True
            dims = _dims(tensor)
            if not dims:
                continue
            info = infos[tensor.name]
            hint = info.shape[0] == dims[0] + 1 if info.is_shape_tensor and info.shape else len(info.shape) == len(dims) + 1
            if found and not hint:
                raise Internal(
                    f"unable to autofill for '{config.name}', model tensor configurations are contradicting each other in "
                    "terms of "
                    "whether batching is supported"
                )
            found = bool(found) or hint
    return found


def _dims(tensor: ModelInput | ModelOutput) -> tuple[int, ...]:
    return tensor.dims if tensor.reshape is None else tensor.reshape.shape


def _new(kind: type[_Tensor], info: EngineTensor, *, batches: bool) -> _Tensor:
    dims, reshape = _dims_of(info, batches=batches)
    if info.datatype is DataType.INVALID:
        raise InvalidArgument(f"tensor '{info.name}' has type {info.type_name} of TensorRT, which requests cannot have")
    return kind(
        name=info.name,
        data_type=info.datatype,
        dims=dims,
        reshape=reshape,
        is_shape_tensor=info.is_shape_tensor,
        is_non_linear_format_io=info.tensor_format != "LINEAR",
    )


def _filled(tensor: _Tensor, infos: Mapping[str, EngineTensor], *, batches: bool) -> _Tensor:
    """Only what is not set. Raises InvalidArgument for a mark of a shape tensor on a tensor that is not one."""
    info = infos[tensor.name]
    if tensor.is_shape_tensor and not info.is_shape_tensor:
        raise InvalidArgument(f"'{tensor.name}' is incorrectly specified as a shape tensor.")
    if tensor.is_non_linear_format_io and info.tensor_format == "LINEAR":
        raise InvalidArgument(
            f"'{tensor.name}' uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to true in the model "
            "configuration."
        )
    full = _new(type(tensor), info, batches=batches)
    return msgspec.structs.replace(
        tensor,
        data_type=full.data_type if tensor.data_type is DataType.INVALID else tensor.data_type,
        dims=tensor.dims or full.dims,
        reshape=tensor.reshape if tensor.dims else full.reshape,
        is_shape_tensor=info.is_shape_tensor,
        is_non_linear_format_io=full.is_non_linear_format_io,
    )


def _dims_of(info: EngineTensor, *, batches: bool) -> tuple[tuple[int, ...], TensorReshape | None]:
    """The configuration's dims and reshape. In a model that batches, a shape tensor has the batch size in front of its values: it
    is neither a dimension nor a value of the request's."""
    if info.is_shape_tensor:
        return tuple(size - 1 if batches else size for size in info.shape), None
    return dims_of(info.shape, batches=batches)
