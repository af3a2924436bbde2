"""Admission: is this request one that this model can run? Pure; Triton's checks, in Triton's order, with Triton's texts.

`Admission.admit` walks the inputs once and only asks "all well?". When something is not, `why_refused` goes through
Triton's checks one by one to say what. Triton keeps a request's inputs in a hash map whose order is, in practice, the reverse of
the order in which they came; which of several faults is reported depends on it, so the checks go backwards too.

Source: Triton core, request normalisation, asked of the real server case by case.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from tpy.config import ModelConfig
from tpy.echo import echo, echo_list, request_prefix
from tpy.errors import InvalidArgument
from tpy.messages import DataType, InferenceRequest, Tensor
from tpy.messages.allowed import allowed_inputs, allowed_outputs, taken_for_parameters, with_hint
from tpy_data.engine.admission.shapes import Dims, Reshape, fits

_RAISE_BATCH_SIZE = "; raise max_batch_size in its config.pbtxt to allow more"
"""Behind Triton's text. Without a configuration nobody chose the limit: auto-completion says 4."""

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input shape. "
    "If you want to specify the full shape including the batch dim in your input dims config, try setting max_batch_size to zero"
    ". See the model configuration docs for more info on max_batch_size."
)
"""Triton's words: clients and people search for them."""


class InputSpec(NamedTuple):
    """One input of the configuration. `dims` has no batch dimension; `fixed` says that no dim is -1, `ragged` that batches may
    mix its shapes. A shape tensor has no batch dimension in requests either, and one value for a whole batch (`shape_tensor`)."""

    name: str
    datatype: DataType
    dims: Dims
    fixed: bool
    optional: bool
    ragged: bool
    reshape: Reshape | None
    shape_tensor: bool


class Admitted(NamedTuple):
    """A request that the model can run: inputs in the model's shapes, rows, and what it may share a batch with."""

    inputs: Mapping[str, Tensor]
    batch_size: int
    signature: Hashable


class Admission:
    """The checks of one model version."""

    __slots__ = (
        "_inputs",
        "_max_batch_size",
        "_model_name",
        "_output_names",
        "_outputs",
        "_required",
        "_reshapes",
        "_same_signature",
        "_shape_tensors",
        "_specs",
    )

    def __init__(self, config: ModelConfig) -> None:
        batching = config.max_batch_size > 0
        self._model_name = config.name
        self._max_batch_size = config.max_batch_size
        self._inputs = tuple(
            InputSpec(
                name=entry.name,
                datatype=entry.data_type,
                dims=entry.dims,
                fixed=all(dim >= 0 for dim in entry.dims),
                optional=entry.optional,
                ragged=entry.allow_ragged_batch,
                reshape=None if entry.reshape is None else Reshape(entry.dims, entry.reshape.shape, batching=batching),
                shape_tensor=entry.is_shape_tensor,
            )
            for entry in config.input
        )
        self._specs = {spec.name: spec for spec in self._inputs}
        self._required = {spec.name: None for spec in self._inputs if not spec.optional}.keys()
        self._outputs = {entry.name: entry for entry in config.output}
        self._output_names = frozenset(self._outputs)
        self._reshapes = any(spec.reshape is not None for spec in self._inputs)
        self._shape_tensors = frozenset(spec.name for spec in self._inputs if spec.shape_tensor)
        self._same_signature = not self._shape_tensors and all(
            (spec.fixed or spec.ragged) and not spec.optional for spec in self._inputs
        )

    def admit(self, request: InferenceRequest) -> Admitted:
        """Raises InvalidArgument when the request does not fit the model's configuration."""
        tensors = request.inputs
        inputs = {tensor.name: tensor for tensor in tensors}
        batch_size = self._batch_size_beside_shapes(tensors) if self._shape_tensors else self._batch_size(tensors)
        if (
            not batch_size
            or len(inputs) != len(tensors)
            or (len(inputs) != len(self._inputs) and not inputs.keys() >= self._required)
            or (request.requested_outputs and not self._output_names.issuperset(request.requested_outputs))
        ):
            raise self.why_refused(request)
        signature = None if self._same_signature else self._signature(inputs)
        if self._reshapes:
            inputs = {name: self._reshaped(tensor) for name, tensor in inputs.items()}
        return Admitted(inputs, batch_size, signature)

    def _batch_size(self, tensors: Sequence[Tensor]) -> int:
        """The common first dimension (1 for a model that does not batch); 0 when any tensor is not as it should be."""
        specs = self._specs
        batching = self._max_batch_size > 0
        batch_size = 1 if not (batching and tensors) else (tensors[0].array.shape or (0,))[0]
        if batching and not 1 <= batch_size <= self._max_batch_size:
            return 0
        for tensor in tensors:
            spec = specs.get(tensor.name)
            if spec is None or tensor.datatype is not spec.datatype:
                return 0
            shape = tensor.array.shape
            if batching:
                if not shape or shape[0] != batch_size:
                    return 0
                shape = shape[1:]
            if shape != spec.dims and (spec.fixed or not fits(shape, spec.dims)):
                return 0
        return batch_size

    def _batch_size_beside_shapes(self, tensors: Sequence[Tensor]) -> int:
        """The same, with shape tensors among them."""
        for tensor in tensors:
            if tensor.name in self._shape_tensors:
                spec = self._specs[tensor.name]
                if tensor.datatype is not spec.datatype or not fits(tensor.array.shape, spec.dims):
                    return 0
        return self._batch_size([tensor for tensor in tensors if tensor.name not in self._shape_tensors])

    def _signature(self, inputs: Mapping[str, Tensor]) -> Hashable:
        begin = 1 if self._max_batch_size > 0 else 0
        return tuple(
            [
                None
                if (tensor := inputs.get(spec.name)) is None
                else ()
                if spec.ragged
                else getattr(tensor.array, "tobytes", object)()  # one on a device shares its batch with nobody
                if spec.shape_tensor
                else tensor.array.shape[begin:]
                for spec in self._inputs
            ]
        )

    def _reshaped(self, tensor: Tensor) -> Tensor:
        reshape = self._specs[tensor.name].reshape
        if reshape is None:
            return tensor
        return Tensor(tensor.name, tensor.datatype, tensor.array.reshape(reshape.to_model(tensor.array.shape)))

    def why_refused(self, request: InferenceRequest) -> InvalidArgument:
        """The error for a request that `admit` does not take: the first fault that Triton would find."""
        prefix = request_prefix(request.id)
        names = [tensor.name for tensor in request.inputs]
        seen: set[str] = set()  # not the list: a request may have a million inputs
        for name in names:
            if name in seen:
                return InvalidArgument(f"{prefix}input '{echo(name)}' already exists in request")
            seen.add(name)
        for name in request.requested_outputs:
            if name not in self._outputs:
                allowed = allowed_outputs(
                    (each.name, each.data_type, self._with_batch(each.dims)) for each in self._outputs.values()
                )
                text = f"unexpected inference output '{echo(name)}' for model '{self._model_name}'"
                return InvalidArgument(with_hint(text, allowed))
        backwards = request.inputs[::-1]
        return (
            self._wrong_inputs(request, names, seen, prefix)
            or self._wrong_batch(backwards, prefix)
            or next((fault for tensor in backwards if (fault := self._wrong_tensor(tensor, prefix))), None)
            or InvalidArgument(
                f"{prefix}inference request batch-size must be >= 1 for '{self._model_name}'"
            )  # Triton takes an empty batch of a variable shape, and its backends hang on it
        )

    def _wrong_inputs(self, request: InferenceRequest, names: list[str], given: set[str], prefix: str) -> InvalidArgument | None:
        total = len(self._inputs)
        least = len(self._required)
        missing = [name for name in self._required if name not in given]
        unknown = next((name for name in reversed(names) if name not in self._specs), None)
        if least <= len(names) <= total and unknown is not None:
            text = f"unexpected inference input '{echo(unknown)}' for model '{self._model_name}'"
            return InvalidArgument(with_hint(text, self._allowed_inputs()))
        if least <= len(names) <= total and not missing:
            return None
        expected = f"expected {total} inputs" if least == total else f"expected number of inputs between {least} and {total}"
        text = (
            f"{prefix}{expected} but got {len(names)} inputs for model '{self._model_name}'. "
            f"Got input(s) {_quoted(names[::-1])}, but missing required input(s) {_quoted(missing)}. "
            "Please provide all required input(s)."
        )
        text = with_hint(text, self._allowed_inputs())
        return InvalidArgument(
            with_hint(text, taken_for_parameters(request.parameters) if missing and request.parameters else "")
        )

    def _allowed_inputs(self) -> str:
        return allowed_inputs((spec.name, spec.datatype, self._with_batch(spec.dims)) for spec in self._inputs)

    def _with_batch(self, dims: Dims) -> Dims:
        """As requests must give it."""
        return (-1, *dims) if self._max_batch_size > 0 else dims

    def _wrong_batch(self, backwards: Sequence[Tensor], prefix: str) -> InvalidArgument | None:
        if self._max_batch_size == 0:
            return None
        batch_size = 0  # Triton's "not seen yet", and so what a tensor with an empty batch looks like to the next one
        for tensor in backwards:
            if tensor.name in self._shape_tensors:
                continue
            if not tensor.array.shape:
                return InvalidArgument(
                    f"{prefix}input '{tensor.name}' has no shape but model requires batch dimension for '{self._model_name}'"
                )
            if batch_size == 0:
                batch_size = tensor.array.shape[0]
            elif tensor.array.shape[0] != batch_size:
                return InvalidArgument(
                    f"{prefix}input '{tensor.name}' batch size does not match other inputs for '{self._model_name}'"
                )
        if batch_size > self._max_batch_size:
            return InvalidArgument(
                f"{prefix}inference request batch-size must be <= {self._max_batch_size} for '{self._model_name}'"
                + _RAISE_BATCH_SIZE
            )
        return None

    def _wrong_tensor(self, tensor: Tensor, prefix: str) -> InvalidArgument | None:
        spec = self._specs[tensor.name]
        batching = self._max_batch_size > 0 and not spec.shape_tensor
        shape = tensor.array.shape
        about = f"input '{tensor.name}' for model '{self._model_name}'"
        if tensor.datatype is not spec.datatype:
            return InvalidArgument(
                f"{prefix}inference input '{tensor.name}' data-type is '{tensor.datatype.value}', "
                f"but model '{self._model_name}' expects '{spec.datatype.value}'"
            )
        if not fits(shape[1:] if batching else shape, spec.dims):
            expected = self._with_batch(spec.dims) if batching else spec.dims
            note = _BATCH_NOTE if batching else ""
            return InvalidArgument(
                f"{prefix}unexpected shape for {about}. Expected {_dims(expected)}, got {_dims(shape)}. {note}"
            )
        if batching and shape[0] == 0 and (elements := prod(shape[1:])):
            # Triton takes a batch of 0 for "no batch" and then misses the bytes of one row.
            if spec.datatype is DataType.BYTES:
                return InvalidArgument(f"{prefix}expected {elements} string elements for inference {about}, got 0")
            return InvalidArgument(
                f"{prefix}input byte size mismatch for {about}. Expected {elements * spec.datatype.itemsize}, got 0"
            )
        return None


def _quoted(names: Sequence[str]) -> str:
    return "[" + echo_list(f"'{echo(name)}'" for name in names) + "]"


def _dims(dims: Sequence[int]) -> str:
    return "[" + ",".join(map(str, dims)) + "]"
