"""The model that a request is for, and the signature by which it is served.

A model of this server has one signature: the one that `TF_SIGNATURE_DEF` names, else `serving_default`. Shapes are those of
TensorFlow, where a number in each row is [N]: here that is [N,1], which the configuration says by an empty `reshape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from tpy.config import ModelConfig, aliases
from tpy.config.model_config import ModelInput, ModelOutput
from tpy.echo import echo, echo_list
from tpy.errors import InvalidArgument, NotFound, Unsupported
from tpy.messages import DataType, InferenceResponse, ModelDescription, Tensor, TensorDescription
from tpy.services import InferenceService, ResolvedModel

PROTOCOL: Final = "tensorflow-serving"
"""The name of both ports for observers and in the audit log."""

DEFAULT_SIGNATURE: Final = "serving_default"
CLASSIFY: Final = "tensorflow/serving/classify"
REGRESS: Final = "tensorflow/serving/regress"
PREDICT: Final = "tensorflow/serving/predict"

_SIGNATURE_PARAMETER: Final = "TF_SIGNATURE_DEF"
_EXAMPLES: Final = "inputs"
_CLASSES, _SCORES, _VALUES = "classes", "scores", "outputs"
_RANKS: Final = (1, 2)


class FailedPrecondition(InvalidArgument):
    """A request that the server is not set up for: FAILED_PRECONDITION over gRPC."""


class SignatureNotServed(FailedPrecondition):
    """A signature that is not the model's."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The model that a request names. Neither `version` nor `label`: the newest version."""

    name: str
    version: int | None = None
    label: str = ""
    signature: str = ""


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output of a signature. `shape` is TensorFlow's; `is_scalar`: it lacks a last dimension of one element that it
    has here. `rows_max` is the largest batch; None: its first dimension is not the batch."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    is_scalar: bool
    rows_max: int | None = None

    def require_shape(self, shape: tuple[int, ...]) -> None:
        """Raise InvalidArgument for a shape that the model would refuse."""
        expected = (*self.shape, 1) if self.is_scalar and len(shape) > len(self.shape) else self.shape
        if len(shape) != len(expected) or any(0 <= size != found for size, found in zip(expected, shape, strict=True)):
            raise InvalidArgument(
                f"unexpected shape for input '{echo(self.name)}'. Expected [{echo_list(expected)}], got [{echo_list(shape)}]"
            )
        if self.rows_max is not None and shape and shape[0] > self.rows_max:
            raise InvalidArgument(
                f"input '{echo(self.name)}': batch size must be <= {self.rows_max} (max_batch_size), got {shape[0]}"
            )


class ServingSignature(msgspec.Struct, frozen=True, kw_only=True):
    """The signature of a model."""

    model: str
    name: str
    inputs: Mapping[str, Argument]
    outputs: Mapping[str, Argument]

    @property
    def method(self) -> str:
        """The method that it is for, by its names and types: examples in a text `inputs`, and what is asked about them."""
        examples = self.inputs.get(_EXAMPLES)
        if len(self.inputs) == 1 and examples is not None and examples.datatype is DataType.BYTES:
            if self.outputs and self.outputs.keys() <= {_CLASSES, _SCORES}:
                return CLASSIFY
            if self.outputs.keys() == {_VALUES}:
                return REGRESS
        return PREDICT

    def require(self, wanted: str) -> None:
        """Raise SignatureNotServed unless the signature of this name, "" for the one that is served, is this one."""
        if wanted and wanted != self.name:
            raise SignatureNotServed(
                f'Serving signature key "{echo(wanted)}" not found. The model is served by "{echo(self.name)}" '
                f"(parameter {_SIGNATURE_PARAMETER})"
            )

    def argument(self, name: str) -> Argument:
        """The input of this name. Raises InvalidArgument."""
        found = self.inputs.get(name)
        if found is None:
            raise InvalidArgument(
                f"input tensor alias not found in signature: {echo(name)}. Inputs expected to be in the set "
                f"{{{echo_list(self.inputs)}}}."
            )
        return found

    def require_output(self, name: str) -> None:
        """Raise InvalidArgument unless the model has an output of this name."""
        if name not in self.outputs:
            raise InvalidArgument(
                f"output tensor alias not found in signature: {echo(name)} Outputs expected to be in the set "
                f"{{{echo_list(self.outputs)}}}."
            )

    def outputs_of(self, response: InferenceResponse) -> list[Tensor]:
        """The outputs in TensorFlow's shapes. Raises the response's error."""
        if response.error is not None:
            raise response.error
        found: list[Tensor] = []
        for tensor in response.outputs:
            described = self.outputs.get(tensor.name)
            shape = tensor.array.shape
            if described is not None and described.is_scalar and shape and shape[-1] == 1:
                tensor = Tensor(tensor.name, tensor.datatype, tensor.array.reshape(shape[:-1]))
            found.append(tensor)
        return found


def tensor_of(argument: Argument, datatype: DataType, array: np.ndarray[Any, Any]) -> Tensor:
    """The input with this content, in the shape that it has here."""
    if argument.is_scalar and array.ndim == len(argument.shape):
        array = array.reshape((*array.shape, 1))
    return Tensor(argument.name, datatype, array)


def resolve(service: InferenceService, spec: ModelSpec) -> ResolvedModel:
    """The copy that answers a request. Raises NotFound as TensorFlow Serving says it, InvalidArgument for an unknown label,
    Unsupported for a model that may answer more than once, and as `InferenceService.resolve`."""
    version = spec.version
    try:
        if spec.label:
            version = _labelled(service.config(spec.name), spec)
        model = service.resolve(spec.name, version)
    except NotFound:
        wanted = f"Latest({echo(spec.name)})" if version is None else f"Specific({echo(spec.name)}, {version})"
        raise NotFound(f"Servable not found for request: {wanted}") from None
    if model.description.decoupled:
        raise Unsupported(f"model '{echo(spec.name)}' may answer more than once: ask it over gRPC's ModelStreamInfer")
    return model


def _labelled(config: ModelConfig, spec: ModelSpec) -> int:
    version = (aliases.aliases(config) or {}).get(spec.label)
    if version is None:
        raise InvalidArgument(f"Unrecognized servable version label: {echo(spec.label)}")
    return version


def version_of(service: InferenceService, spec: ModelSpec) -> int | None:
    """The version that is asked for; None: none in particular. Raises as `resolve`."""
    if not spec.label:
        return spec.version
    try:
        return _labelled(service.config(spec.name), spec)
    except NotFound:
        raise NotFound(f"Servable not found for request: Latest({echo(spec.name)})") from None


def signature_of(service: InferenceService, description: ModelDescription) -> ServingSignature:
    """The signature of a model."""
    config = service.config(description.name, description.version)
    inputs = {each.name: each for each in config.input}
    outputs = {each.name: each for each in config.output}
    rows_max = description.max_batch_size if description.batches else None
    return ServingSignature(
        model=description.name,
        name=config.parameter(_SIGNATURE_PARAMETER) or DEFAULT_SIGNATURE,
        inputs={each.name: _argument(each, inputs.get(each.name), rows_max) for each in description.inputs},
        outputs={each.name: _argument(each, outputs.get(each.name), rows_max) for each in description.outputs},
    )


def _argument(described: TensorDescription, configured: ModelInput | ModelOutput | None, rows_max: int | None) -> Argument:
    is_scalar = (
        configured is not None
        and configured.reshape is not None
        and not configured.reshape.shape
        and tuple(configured.dims) == (1,)
        and described.shape[-1:] == (1,)
    )
    shape = described.shape[:-1] if is_scalar else described.shape
    if configured is not None and configured.is_shape_tensor and rows_max is not None:
        shape, rows_max = shape[1:], None  # one for the whole batch
    return Argument(
        name=described.name,
        datatype=described.datatype,
        shape=tuple(shape),
        is_scalar=is_scalar,
        rows_max=rows_max,
    )
