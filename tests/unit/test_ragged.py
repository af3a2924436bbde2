"""Gathering and scattering of ragged batches, against a model that goes through the elements one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy.backend import batching_of
from tpy.backend.batching import PlainBatching
from tpy.config import ModelConfig
from tpy.config.model_config import BatchInput, BatchInputKind, BatchOutput, ModelInput, ModelOutput, TensorReshape
from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType, Tensor
from tpy.testing import request_of
from tpy.testing.requests import SampleRequest

Array = np.ndarray[Any, Any]
Kind = BatchInputKind

RAGGED = ModelConfig(
    name="m",
    max_batch_size=16,
    input=(
        ModelInput(name="X", data_type=DataType.FP32, dims=(-1, -1), allow_ragged_batch=True),
        ModelInput(name="TEXT", data_type=DataType.BYTES, dims=(-1,), allow_ragged_batch=True),
        ModelInput(name="PLAIN", data_type=DataType.INT64, dims=(2,)),
    ),
    output=(
        ModelOutput(name="Y", data_type=DataType.FP32, dims=(-1, -1)),
        ModelOutput(name="ECHO", data_type=DataType.BYTES, dims=(-1,)),
        ModelOutput(name="ROWS", data_type=DataType.INT64, dims=(2,)),
    ),
    batch_input=tuple(
        BatchInput(kind=kind, target_name=(f"{kind.name}_{datatype.value}",), data_type=datatype, source_input=("X",))
        for kind in Kind
        for datatype in (DataType.INT32, DataType.FP32)
    ),
    batch_output=(
        BatchOutput(target_name=("Y",), source_input=("X",)),
        BatchOutput(target_name=("ECHO",), source_input=("TEXT",)),
    ),
)


@st.composite
def requests_of_a_batch(draw: st.DrawFn) -> list[SampleRequest]:
    requests = []
    for index in range(draw(st.integers(1, 4))):
        rows, height, width, words = draw(st.tuples(st.integers(1, 3), *(st.integers(0, 3) for _ in range(3))))
        numbers = np.arange(rows * height * width, dtype=np.float32).reshape(rows, height, width) + 100 * index
        texts = np.empty((rows, words), dtype=object)
        texts[:] = b"%d" % index
        plain = np.full((rows, 2), index, np.int64)
        requests.append(request_of(RAGGED, {"X": numbers, "TEXT": texts, "PLAIN": plain}))
    return requests


def naive(requests: list[SampleRequest]) -> dict[str, list[Any]]:
    """The expected feed of a model, as (nested) lists."""
    fed: dict[str, list[Any]] = {"X": [], "TEXT": [], "PLAIN": []}
    counts, totals, items, flat = [], [], [], []
    total = 0
    for request in requests:
        x = request.inputs["X"].array
        fed["X"] += [x[at] for at in np.ndindex(x.shape)]
        fed["TEXT"] += [text for row in request.inputs["TEXT"].array for text in row]
        fed["PLAIN"] += [list(row) for row in request.inputs["PLAIN"].array]
        count = sum(1 for _ in np.ndindex(x.shape))
        total += count
        counts.append(count)
        totals.append(total)
        for _ in range(x.shape[0]):
            items.append(list(x.shape[1:]))
            flat.extend(x.shape[1:])
    by_kind: dict[Kind, list[Any]] = {
        Kind.BATCH_ELEMENT_COUNT: counts,
        Kind.BATCH_ACCUMULATED_ELEMENT_COUNT: totals,
        Kind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: [0, *totals],
        Kind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: [0] * max(counts),
        Kind.BATCH_ITEM_SHAPE: items,
        Kind.BATCH_ITEM_SHAPE_FLATTEN: flat,
    }
    for kind, values in by_kind.items():
        fed[f"{kind.name}_INT32"] = values
        fed[f"{kind.name}_FP32"] = [[float(v) for v in row] if isinstance(row, list) else float(row) for row in values]
    return fed


@given(requests_of_a_batch())
def test_a_model_is_fed_what_the_naive_way_makes(requests: list[SampleRequest]) -> None:
    fed = batching_of(RAGGED).gather(requests)
    assert {name: array.tolist() for name, array in fed.items()} == naive(requests)
    for name, array in fed.items():
        if name.endswith("_INT32"):
            assert array.dtype == np.int32
        elif name.endswith("_FP32"):
            assert array.dtype == np.float32
    assert fed["X"].ndim == fed["TEXT"].ndim == 1
    assert fed["BATCH_ITEM_SHAPE_INT32"].ndim == 2


@given(requests_of_a_batch())
def test_outputs_made_of_the_inputs_come_back_in_the_shapes_of_the_inputs(requests: list[SampleRequest]) -> None:
    batching = batching_of(RAGGED)
    fed = batching.gather(requests)
    outputs = [
        Tensor("Y", DataType.FP32, fed["X"] * 2),
        Tensor("ROWS", DataType.INT64, fed["PLAIN"]),
        Tensor("ECHO", DataType.BYTES, fed["TEXT"]),
    ]
    results = batching.scatter(requests, outputs)
    assert len(results) == len(requests)
    for request, result in zip(requests, results, strict=True):
        y, rows, echo = result.outputs
        np.testing.assert_array_equal(y.array, request.inputs["X"].array * 2)
        np.testing.assert_array_equal(rows.array, request.inputs["PLAIN"].array)
        assert echo.array.shape == request.inputs["TEXT"].array.shape
        assert echo.array.tolist() == request.inputs["TEXT"].array.tolist()
        assert echo.datatype is DataType.BYTES


def one(*shape: int) -> SampleRequest:
    return request_of(ONE_INPUT, {"X": np.zeros(shape, np.float32)})


ONE_INPUT = ModelConfig(
    name="m",
    max_batch_size=8,
    input=(ModelInput(name="X", data_type=DataType.FP32, dims=(-1,), allow_ragged_batch=True),),
    output=(ModelOutput(name="Y", data_type=DataType.FP32, dims=(-1, 2)),),
    batch_output=(BatchOutput(target_name=("Y",), source_input=("X",)),),
)


def test_a_variable_size_of_the_output_is_that_of_the_same_dimension_of_the_source() -> None:
    batching = batching_of(ONE_INPUT)
    results = batching.scatter([one(1, 3), one(2, 1)], [Tensor("Y", DataType.FP32, np.arange(10, dtype=np.float32))])
    assert [result.outputs[0].array.tolist() for result in results] == [[[[0, 1], [2, 3], [4, 5]]], [[[6, 7]], [[8, 9]]]]


@pytest.mark.parametrize("elements", [9, 11, 0])
def test_an_output_of_other_than_all_elements_is_an_error(elements: int) -> None:
    output = Tensor("Y", DataType.FP32, np.zeros(elements, np.float32))
    with pytest.raises(Internal, match=rf"output 'Y' has {elements} elements, not the number"):
        batching_of(ONE_INPUT).scatter([one(1, 3), one(2, 1)], [output])


def test_an_output_of_rows_needs_a_row_for_each() -> None:
    output = Tensor("OTHER", DataType.FP32, np.zeros((2, 1), np.float32))
    with pytest.raises(Internal, match="expected first dimension 3: the batch size"):
        batching_of(ONE_INPUT).scatter([one(1, 3), one(2, 1)], [output])


def test_a_target_takes_the_shape_that_the_model_sees() -> None:
    config = ModelConfig(
        name="m",
        max_batch_size=8,
        input=(
            ModelInput(
                name="X", data_type=DataType.FP32, dims=(-1, 2), reshape=TensorReshape(shape=(2, -1)), allow_ragged_batch=True
            ),
        ),
        output=(ModelOutput(name="Y", data_type=DataType.FP32, dims=(-1, 2), reshape=TensorReshape(shape=(2, -1))),),
        batch_output=(BatchOutput(target_name=("Y",), source_input=("X",)),),
    )
    request = request_of(config, {"X": np.zeros((1, 2, 3), np.float32)})
    (result,) = batching_of(config).scatter([request], [Tensor("Y", DataType.FP32, np.zeros(6, np.float32))])
    assert result.outputs[0].array.shape == (1, 2, 3)


def test_a_variable_size_that_the_source_does_not_have_is_refused() -> None:
    config = ModelConfig(
        name="m",
        max_batch_size=8,
        input=ONE_INPUT.input,
        output=(ModelOutput(name="Y", data_type=DataType.FP32, dims=(2, -1)),),
        batch_output=ONE_INPUT.batch_output,
    )
    with pytest.raises(InvalidArgument, match=r"output 'Y' has a variable size in dimension 2, which its source input 'X'"):
        batching_of(config)


def test_a_source_that_was_left_out_is_an_error() -> None:
    config = ModelConfig(
        name="m",
        max_batch_size=8,
        input=(
            ModelInput(name="X", data_type=DataType.FP32, dims=(-1,), optional=True),
            ModelInput(name="Z", data_type=DataType.FP32, dims=(-1,)),
        ),
        batch_input=(
            BatchInput(kind=Kind.BATCH_ELEMENT_COUNT, target_name=("N",), data_type=DataType.INT32, source_input=("X",)),
        ),
    )
    request = request_of(config, {"Z": np.zeros((1, 2), np.float32)})
    with pytest.raises(InvalidArgument, match="input 'X' does not exist in request"):
        batching_of(config).gather([request])


def test_every_name_of_a_batch_input_is_fed() -> None:
    config = ModelConfig(
        name="m",
        max_batch_size=8,
        input=ONE_INPUT.input,
        batch_input=(
            BatchInput(kind=Kind.BATCH_ELEMENT_COUNT, target_name=("N", "M"), data_type=DataType.INT32, source_input=("X",)),
        ),
    )
    fed = batching_of(config).gather([one(1, 3), one(2, 1)])
    assert fed["N"].tolist() == fed["M"].tolist() == [3, 2]


def test_models_without_any_of_it_keep_the_plain_way() -> None:
    config = ModelConfig(name="m", max_batch_size=8, input=(ModelInput(name="X", data_type=DataType.FP32, dims=(-1,)),))
    assert isinstance(batching_of(config), PlainBatching)
