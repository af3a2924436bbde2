"""The choice of a profile and of a graph for a batch: pure, against models that try everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.backends.tensorrt.models import double_config
from tpy.config import ModelConfig
from tpy.config.model_config import (
    CudaGraphLowerBound,
    CudaGraphShape,
    CudaGraphSpec,
    DynamicBatching,
    Optimization,
    OptimizationCuda,
    SequenceBatching,
    StrategyOldest,
)
from tpy.errors import InvalidArgument
from tpy_backends.tensorrt.graph_specs import GraphShapes, closest, graph_specs
from tpy_backends.tensorrt.profiles import choose, distance, refusal
from tpy_backends.tensorrt.signature import Extent, OptimizationProfile

SIZES = st.integers(1, 6)
SHAPES = st.tuples(SIZES, SIZES)


@st.composite
def extents(draw: st.DrawFn) -> Extent:
    triples = [sorted(draw(st.tuples(SIZES, SIZES, SIZES))) for _ in range(2)]
    return Extent(*(tuple(triple[place] for triple in triples) for place in range(3)))


@given(st.lists(st.tuples(extents(), extents()), min_size=1, max_size=4), SHAPES, SHAPES)
def test_the_nearest_profile_that_fits(
    given_extents: list[tuple[Extent, Extent]], shape: tuple[int, int], values: tuple[int, int]
) -> None:
    profiles = [OptimizationProfile(index=index, shapes={"x": x}, values={"s": s}) for index, (x, s) in enumerate(given_extents)]

    def fits(profile: OptimizationProfile) -> bool:
        pairs = ((profile.shapes["x"], shape), (profile.values["s"], values))
        return all(extent.smallest[axis] <= size[axis] <= extent.largest[axis] for extent, size in pairs for axis in range(2))

    def far(profile: OptimizationProfile) -> int:
        return sum(
            abs(extent.best[axis] - size[axis])
            for extent, size in ((profile.shapes["x"], shape), (profile.values["s"], values))
            for axis in range(2)
        )

    wanted = min((profile for profile in profiles if fits(profile)), key=far, default=None)
    found = choose(profiles, {"x": shape}, {"s": values})
    assert found is wanted
    if wanted is None:
        assert all(
            f"profile {profile.index}: model expected" in refusal("m", profiles, {"x": shape}, {"s": values}).message
            for profile in profiles
        )
    else:
        assert distance(wanted, {"x": shape}, {"s": values}) == far(wanted)


def test_another_number_of_dimensions_fits_no_profile() -> None:
    profile = OptimizationProfile(index=0, shapes={"x": Extent((1, 1), (2, 2), (3, 3))}, values={})
    assert choose([profile], {"x": (1,)}, {}) is None
    assert refusal("m", [profile], {"x": (1,)}, {}).message.endswith(
        "profile 0: model expected 2 dimensions but received 1 dimensions"
    )


@given(st.lists(st.tuples(SHAPES, SIZES), max_size=5), SHAPES)
def test_the_graph_of_just_this_shape_or_the_smallest_with_room(
    made: list[tuple[tuple[int, int], int]], shape: tuple[int, int]
) -> None:
    graphs = [GraphShapes({"x": largest}, {"x": (min(lower, largest[0]), largest[1])}) for largest, lower in made]
    found = closest(graphs, {"x": shape})
    serving = [
        index
        for index, graph in enumerate(graphs)
        if graph.largest["x"][1] == shape[1] and graph.smallest["x"][0] <= shape[0] <= graph.largest["x"][0]
    ]
    if found is None:
        assert not serving
    else:
        assert found in serving
        assert graphs[found].largest["x"][0] == min(graphs[index].largest["x"][0] for index in serving)


def with_graphs(*specs: CudaGraphSpec, **fields: object) -> ModelConfig:
    return double_config(optimization=Optimization(cuda=OptimizationCuda(graphs=True, graph_spec=specs)), **fields)


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (double_config(), []),
        (with_graphs(max_batch_size=32), [1, 2, 3, 4, 6, 8, 12, 16, 32]),
        (with_graphs(max_batch_size=5), [1, 2, 3, 4, 5]),
        (with_graphs(max_batch_size=0), [0]),
        (with_graphs(max_batch_size=8, dynamic_batching=DynamicBatching(preferred_batch_size=(4,))), [1, 4, 8]),
        (with_graphs(max_batch_size=8, dynamic_batching=DynamicBatching()), [1, 8]),
        (
            with_graphs(max_batch_size=8, sequence_batching=SequenceBatching(oldest=StrategyOldest(preferred_batch_size=(2, 4)))),
            [1, 2, 4, 8],
        ),
    ],
)
def test_default_graphs(config: ModelConfig, sizes: list[int]) -> None:
    assert [spec.batch_size for spec in graph_specs(config)] == sizes


def dims(*sizes: int) -> dict[str, CudaGraphShape]:
    return {"x": CudaGraphShape(dim=sizes)}


def test_a_graph_of_a_model_that_does_not_batch_serves_just_its_own_shapes() -> None:
    """An answer with the rows of a larger graph would have what an earlier request left in the memory."""
    spec = CudaGraphSpec(input=dims(16), graph_lower_bound=CudaGraphLowerBound(input=dims(1)))
    [found] = graph_specs(with_graphs(spec, max_batch_size=0))
    assert found.lower_shapes == found.shapes == {"x": (16,)}


@pytest.mark.parametrize(
    ("spec", "max_batch_size", "text"),
    [
        (CudaGraphSpec(batch_size=1), 0, "to be 0 if 'max_batch_size' is 0"),
        (CudaGraphSpec(batch_size=5), 4, "to be >= 1 and <= 4"),
        (CudaGraphSpec(batch_size=0), 4, "to be >= 1 and <= 4"),
        (
            CudaGraphSpec(batch_size=2, graph_lower_bound=CudaGraphLowerBound(batch_size=3)),
            4,
            "to be <= graph spec 'batch_size'",
        ),
        (
            CudaGraphSpec(batch_size=2, input=dims(4), graph_lower_bound=CudaGraphLowerBound(batch_size=1)),
            4,
            "graph lower bound spec expects shape for input 'x'",
        ),
        (
            CudaGraphSpec(batch_size=2, input=dims(4), graph_lower_bound=CudaGraphLowerBound(batch_size=1, input=dims(4, 4))),
            4,
            "1 dimensions, got 2",
        ),
        (
            CudaGraphSpec(batch_size=2, input=dims(4), graph_lower_bound=CudaGraphLowerBound(batch_size=1, input=dims(5))),
            4,
            "to have dimension <= 4",
        ),
        (CudaGraphSpec(batch_size=2, input=dims(-1)), 4, "to have dimension >= 0"),
    ],
)
def test_graphs_that_cannot_be(spec: CudaGraphSpec, max_batch_size: int, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        graph_specs(with_graphs(spec, max_batch_size=max_batch_size))
