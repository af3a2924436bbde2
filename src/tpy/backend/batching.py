"""Gather the inputs of a batch into one array each, and scatter outputs back to their requests; also of ragged batches, whose
inputs differ in shape: the tensors that tell the model how, and outputs cut accordingly.

`batching_of` gives a backend the way its model's batches are gathered and scattered, chosen once, at load: models that have
nothing ragged keep the plain one.

Source: Triton's backend library, whose onnxruntime and tensorrt backends gather so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from tpy.backend.execution import ExecutionRequest, ExecutionResult
from tpy.config import ModelConfig
from tpy.config.model_config import BatchInput, BatchInputKind, BatchOutput
from tpy.errors import Internal, InvalidArgument
from tpy.messages import Tensor


def gather(requests: Sequence[ExecutionRequest]) -> dict[str, np.ndarray[Any, Any]]:
    """One array per input name, requests concatenated along the first dimension, in order.

    A batch of one is not copied. Shapes must agree apart from the first dimension (the engine forms batches so).
    """
    if len(requests) == 1:
        return {name: tensor.array for name, tensor in requests[0].inputs.items()}
    return {name: np.concatenate([request.inputs[name].array for request in requests]) for name in requests[0].inputs}


def scatter(requests: Sequence[ExecutionRequest], outputs: Sequence[Tensor], *, batches: bool) -> list[ExecutionResult]:
    """Cut each output's first dimension by the requests' batch sizes; views, no copies.

    Without batching (`batches` false) there is one request and it gets the outputs whole. Raises Internal when a batched
    output's first dimension is not the batch's size.
    """
    if not batches or len(requests) == 1:
        return [ExecutionResult(outputs)]
    sizes = [request.batch_size for request in requests]
    for tensor in outputs:
        require_rows(tensor, sum(sizes))
    results = []
    begin = 0
    for size in sizes:
        end = begin + size
        results.append(ExecutionResult([Tensor(t.name, t.datatype, t.array[begin:end]) for t in outputs]))
        begin = end
    return results


def require_rows(tensor: Tensor, rows: int) -> None:
    """Raises Internal when an output has not as many rows as the batch."""
    array = tensor.array
    if array.ndim == 0 or array.shape[0] != rows:
        raise Internal(f"output '{tensor.name}' has shape {list(array.shape)}, expected first dimension {rows}: the batch size")


def by_name(outputs: Mapping[str, Tensor], requested: Sequence[str]) -> list[Tensor]:
    """The outputs named in `requested` (all when empty), in that order; missing ones are left out."""
    if not requested:
        return list(outputs.values())
    return [outputs[name] for name in requested if name in outputs]


Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class Batching(Protocol):
    """Gathers the inputs of a model's batches and scatters their outputs. Safe to use from several threads."""

    def gather(self, requests: Sequence[ExecutionRequest]) -> dict[str, Array]:
        """One array per input of the model. Arrays may be views of the requests' own."""
        ...

    def scatter(self, requests: Sequence[ExecutionRequest], outputs: Sequence[Tensor]) -> list[ExecutionResult]:
        """One result per request, with views of the outputs. Raises Internal for an output that cannot be cut so."""
        ...


def batching_of(config: ModelConfig) -> Batching:
    """The batching of a validated configuration. Raises InvalidArgument for a `batch_output` that no request could fill."""
    if config.batch_input or config.batch_output or any(given.allow_ragged_batch for given in config.input):
        return RaggedBatching(config)
    return PlainBatching(batches=config.max_batch_size > 0)


class PlainBatching:
    """Every input has one shape in all requests, but for the batch dimension."""

    __slots__ = ("_batches", "gather")

    def __init__(self, *, batches: bool) -> None:
        self._batches = batches
        self.gather = gather

    def scatter(self, requests: Sequence[ExecutionRequest], outputs: Sequence[Tensor]) -> list[ExecutionResult]:
        """By rows; whole to the one request of a model that does not batch."""
        return scatter(requests, outputs, batches=self._batches)


class _Made(NamedTuple):
    """A `batch_input`: an array made from the source's shapes (batch dimension included), under each of the names."""

    source: str
    make: Callable[[Sequence[Shape], np.dtype[Any]], Array]
    dtype: np.dtype[Any]
    names: tuple[str, ...]


class RaggedBatching:
    """Ragged inputs become one flat array of all their elements, in the order of the requests, also for one request alone; other
    inputs are gathered by rows. Each `batch_input` is added under its target names. Outputs of a `batch_output` are cut by the
    shape of its source input, the others by rows."""

    __slots__ = ("_batches", "_cuts", "_made", "_ragged")

    def __init__(self, config: ModelConfig) -> None:
        self._batches = config.max_batch_size > 0
        self._ragged = frozenset(given.name for given in config.input if given.allow_ragged_batch)
        self._made = tuple(_made(given) for given in config.batch_input)
        self._cuts = {name: _cut(config, made, name) for made in config.batch_output for name in made.target_name}

    def gather(self, requests: Sequence[ExecutionRequest]) -> dict[str, Array]:
        """Raises InvalidArgument when the source of a `batch_input` is an optional input that was not given."""
        feed: dict[str, Array] = {}
        for name, first in requests[0].inputs.items():
            ragged = name in self._ragged
            if len(requests) == 1:
                feed[name] = first.array.reshape(-1) if ragged else first.array
            else:
                # Without an axis numpy flattens.
                feed[name] = np.concatenate([each.inputs[name].array for each in requests], axis=None if ragged else 0)
        for made in self._made:
            array = made.make([_shape(each, made.source) for each in requests], made.dtype)
            for name in made.names:
                feed[name] = array
        return feed

    def scatter(self, requests: Sequence[ExecutionRequest], outputs: Sequence[Tensor]) -> list[ExecutionResult]:
        """Raises Internal for an output that has not the elements or rows of all requests."""
        per_request: list[list[Tensor]] = [[] for _ in requests]
        for tensor in outputs:
            cut = self._cuts.get(tensor.name)
            if cut is not None:
                parts = cut.parts(tensor, requests)
            elif self._batches and len(requests) > 1:
                parts = _rows(tensor, [request.batch_size for request in requests])
            else:
                parts = [tensor.array]
            for mine, part in zip(per_request, parts, strict=True):
                mine.append(Tensor(tensor.name, tensor.datatype, part))
        return [ExecutionResult(mine) for mine in per_request]


class _Cut(NamedTuple):
    """A target of `batch_output`. Of `shape`, which counts the batch dimension, the sizes at the indices `variable` are taken
    from the same indices in the shape of `source`."""

    source: str
    shape: Shape
    variable: tuple[int, ...]

    def parts(self, tensor: Tensor, requests: Sequence[ExecutionRequest]) -> list[Array]:
        """Each request's part, in its shape; views."""
        flat = tensor.array.reshape(-1)
        parts = []
        begin = 0
        for request in requests:
            shape = list(self.shape)
            given = _shape(request, self.source)
            for index in self.variable:
                shape[index] = given[index]
            end = begin + prod(shape)
            if end > flat.size:
                break
            parts.append(flat[begin:end].reshape(shape))
            begin = end
        if len(parts) < len(requests) or begin != flat.size:
            raise Internal(
                f"output '{tensor.name}' has {flat.size} elements, not the number that batch_output gives its requests by the "
                f"shapes of input '{self.source}'"
            )
        return parts


def _rows(tensor: Tensor, sizes: Sequence[int]) -> list[Array]:
    require_rows(tensor, sum(sizes))
    return [tensor.array[end - size : end] for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]


def _shape(request: ExecutionRequest, name: str) -> Shape:
    tensor = request.inputs.get(name)
    if tensor is None:
        raise InvalidArgument(f"input '{name}' does not exist in request")
    shape: Shape = tensor.array.shape
    return shape


def _made(given: BatchInput) -> _Made:
    return _Made(given.source_input[0], _MAKERS[given.kind], given.data_type.numpy, given.target_name)


def _cut(config: ModelConfig, made: BatchOutput, name: str) -> _Cut:
    batch = (-1,) if config.max_batch_size > 0 else ()
    source_name = made.source_input[0]
    output = next(entry for entry in config.output if entry.name == name)
    source = next(entry for entry in config.input if entry.name == source_name)
    shape = (*batch, *(output.dims if output.reshape is None else output.reshape.shape))
    rank = len(batch) + len(source.dims if source.reshape is None else source.reshape.shape)
    if -1 in shape[rank:]:
        raise InvalidArgument(
            f"model '{config.name}', batch_output: output '{name}' has a variable size in dimension {shape.index(-1, rank)}, "
            f"which its source input '{source_name}' does not have"
        )
    return _Cut(source_name, shape, tuple(index for index, size in enumerate(shape) if size == -1))


def _element_counts(shapes: Sequence[Shape], dtype: np.dtype[Any]) -> Array:
    return _counts([prod(shape) for shape in shapes], dtype)


def _accumulated(shapes: Sequence[Shape], dtype: np.dtype[Any]) -> Array:
    return _accumulated_with_zero(shapes, dtype)[1:]


def _accumulated_with_zero(shapes: Sequence[Shape], dtype: np.dtype[Any]) -> Array:
    totals = [0]
    for shape in shapes:
        totals.append(totals[-1] + prod(shape))
    return _counts(totals, dtype)


def _max_as_shape(shapes: Sequence[Shape], dtype: np.dtype[Any]) -> Array:
    """Only its shape says something."""
    return np.zeros(max(map(prod, shapes)), dtype)


def _item_shapes(shapes: Sequence[Shape], dtype: np.dtype[Any]) -> Array:
    """[rows, rank without batch]: every row of a request has its request's shape."""
    items = [_counts(list(shape[1:]), dtype) for shape in shapes]
    return np.repeat(np.stack(items), [shape[0] for shape in shapes], axis=0)


def _item_shapes_flat(shapes: Sequence[Shape], dtype: np.dtype[Any]) -> Array:
    return _item_shapes(shapes, dtype).reshape(-1)


def _counts(numbers: list[int], dtype: np.dtype[Any]) -> Array:
    try:
        return np.array(numbers, dtype)
    except OverflowError:
        raise InvalidArgument(f"the batch has too many elements to be counted as {dtype.name}") from None


_MAKERS: Mapping[BatchInputKind, Callable[[Sequence[Shape], np.dtype[Any]], Array]] = {
    BatchInputKind.BATCH_ELEMENT_COUNT: _element_counts,
    BatchInputKind.BATCH_ACCUMULATED_ELEMENT_COUNT: _accumulated,
    BatchInputKind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: _accumulated_with_zero,
    BatchInputKind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: _max_as_shape,
    BatchInputKind.BATCH_ITEM_SHAPE: _item_shapes,
    BatchInputKind.BATCH_ITEM_SHAPE_FLATTEN: _item_shapes_flat,
}

BATCH_INPUT_RANKS: Mapping[BatchInputKind, int] = {
    kind: 2 if kind is BatchInputKind.BATCH_ITEM_SHAPE else 1 for kind in BatchInputKind
}
"""The number of dimensions of each kind."""
