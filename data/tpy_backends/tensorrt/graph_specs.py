"""CUDA graphs: which are captured for a model, and which of them a batch takes (`optimization.cuda`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tpy.config import ModelConfig
from tpy.config.model_config import CudaGraphShape, CudaGraphSpec
from tpy.errors import InvalidArgument
from tpy_backends.tensorrt.profiles import Shapes
from tpy_backends.tensorrt.signature import OptimizationProfile, Shape

_SIZES_DEFAULT = (1, 2, 3, 4, 6, 8, 12, 16)
"""Triton's choice, for models without a batcher that says which sizes it prefers: graphs help small batches most."""


class GraphSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A graph to capture: a batch size (0 for a model that does not batch) and the shapes of inputs without it; inputs that it
    does not name have the best shapes of the profile. It serves batches down to `lower_batch_size` and `lower_shapes`."""

    batch_size: int
    shapes: Shapes = msgspec.field(default_factory=dict)
    lower_batch_size: int
    lower_shapes: Shapes = msgspec.field(default_factory=dict)


class GraphShapes(NamedTuple):
    """The full shapes of all inputs of a captured graph, and the smallest that it serves."""

    largest: Shapes
    smallest: Shapes


def graph_specs(config: ModelConfig) -> list[GraphSpec]:
    """The graphs of the configuration, or Triton's default ones. Raises InvalidArgument, with Triton's texts, for a graph that
    cannot be."""
    cuda = config.optimization.cuda if config.optimization is not None else None
    if cuda is None or not cuda.graphs:
        return []
    if not cuda.graph_spec:
        return [GraphSpec(batch_size=size, lower_batch_size=size) for size in _default_sizes(config)]
    # Outputs that are cut by the shapes of inputs, and those of models that do not batch, have no rows: what a larger graph makes
    # behind those of the request, out of what was in the memory before, could not be left out.
    exact = bool(config.batch_output) or not config.max_batch_size
    specs = [_spec(given, exact=exact) for given in cuda.graph_spec]
    for spec in specs:
        _check(config, spec)
    return specs


def _default_sizes(config: ModelConfig) -> list[int]:
    largest = config.max_batch_size
    if not largest:
        return [0]
    sizes: Iterable[int] = _SIZES_DEFAULT
    sequences = config.sequence_batching
    if config.dynamic_batching is not None:
        sizes = (1, *config.dynamic_batching.preferred_batch_size)
    elif sequences is not None and sequences.oldest is not None:
        sizes = (1, *sequences.oldest.preferred_batch_size)
    return sorted(size for size in {*sizes, largest} if size <= largest)


def _spec(given: CudaGraphSpec, *, exact: bool) -> GraphSpec:
    shapes = _shapes(given.input)
    lower = None if exact else given.graph_lower_bound
    if lower is None:
        return GraphSpec(batch_size=given.batch_size, shapes=shapes, lower_batch_size=given.batch_size, lower_shapes=shapes)
    return GraphSpec(
        batch_size=given.batch_size, shapes=shapes, lower_batch_size=lower.batch_size, lower_shapes=_shapes(lower.input)
    )


def _shapes(given: Mapping[str, CudaGraphShape]) -> dict[str, Shape]:
    return {name: tuple(shape.dim) for name, shape in given.items()}


def _check(config: ModelConfig, spec: GraphSpec) -> None:
    largest = config.max_batch_size
    if not largest:
        if spec.batch_size or spec.lower_batch_size:
            raise InvalidArgument("graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0")
    elif not (1 <= spec.batch_size <= largest and 1 <= spec.lower_batch_size <= largest):
        raise InvalidArgument(f"graph spec expects 'batch_size' to be >= 1 and <= {largest}")
    if spec.lower_batch_size > spec.batch_size:
        raise InvalidArgument("graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'")
    for name, shape in spec.shapes.items():
        lower = spec.lower_shapes.get(name)
        if lower is None:
            raise InvalidArgument(f"graph lower bound spec expects shape for input '{name}'")
        if len(lower) != len(shape):
            raise InvalidArgument(f"graph lower bound spec expects to have '{len(shape)} dimensions, got {len(lower)}")
        for least, size in zip(lower, shape, strict=True):
            if least < 0 or size < 0:
                raise InvalidArgument(f"graph spec expects input '{name}' to have dimension >= 0")
            if least > size:
                raise InvalidArgument(f"graph lower bound spec expects input '{name}' to have dimension <= {size}")


def shapes_of(spec: GraphSpec, profile: OptimizationProfile, unbatched: Iterable[str]) -> GraphShapes | None:
    """The shapes of all inputs in a profile; None when the profile does not take them. `unbatched` are inputs that the server
    makes for a whole batch: their shapes have no batch dimension in front, where the specification names them.

    Raises InvalidArgument for an input that the engine has not.
    """
    unknown = sorted(spec.shapes.keys() - profile.shapes.keys())
    if unknown:
        raise InvalidArgument(f"trt failed to set input shape for unknown input '{unknown[0]}'")
    alone = frozenset(unbatched)
    largest: dict[str, Shape] = {}
    smallest: dict[str, Shape] = {}
    for name, extent in profile.shapes.items():
        if name in spec.shapes:
            batched = bool(spec.batch_size) and name not in alone
            largest[name] = (spec.batch_size, *spec.shapes[name]) if batched else spec.shapes[name]
            smallest[name] = (spec.lower_batch_size, *spec.lower_shapes[name]) if batched else spec.lower_shapes[name]
        else:
            rest = extent.best[1:] if spec.batch_size else extent.best
            largest[name] = (spec.batch_size, *rest) if spec.batch_size else rest
            smallest[name] = (spec.lower_batch_size, *rest) if spec.batch_size else rest
        if not all(
            least <= size <= most for least, size, most in zip(extent.smallest, largest[name], extent.largest, strict=False)
        ) or len(largest[name]) != len(extent.largest):
            return None
    return GraphShapes(largest, smallest)


def closest(captured: Sequence[GraphShapes], shapes: Shapes) -> int | None:
    """Returns the index of the graph that a batch of these shapes takes: one captured for just these, or else the smallest that
    serves it with room to spare; None without either.

    Only the first dimension may have room: then what the batch has is in front in each buffer, as the graph expects it.
    """
    found: int | None = None
    for index, graph in enumerate(captured):
        if graph.largest == shapes:
            return index
        if all(_serves(graph, name, shape) for name, shape in shapes.items()) and (
            found is None or _rows(graph) < _rows(captured[found])
        ):
            found = index
    return found


def _serves(graph: GraphShapes, name: str, shape: Shape) -> bool:
    largest = graph.largest[name]
    return (
        len(shape) == len(largest)
        and shape[1:] == largest[1:]
        and all(least <= size <= most for least, size, most in zip(graph.smallest[name], shape, largest, strict=True))
    )


def _rows(graph: GraphShapes) -> int:
    return sum(shape[0] for shape in graph.largest.values() if shape)
