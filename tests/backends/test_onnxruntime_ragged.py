"""Ragged batches on real sessions: flat inputs, batch_input, batch_output, and what is refused at load."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.backends import onnx_models
from tpy.backend import Backend, BackendSettings, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import BatchInput, BatchInputKind, BatchOutput, InstanceKind, ModelInput, ModelOutput, TensorReshape
from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType
from tpy.testing import HostedModel, request_of
from tpy_backends.onnxruntime import create

Kind = BatchInputKind
ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)

SUMS = ModelConfig(
    name="sums",
    backend="onnxruntime",
    max_batch_size=8,
    input=(ModelInput(name="X", data_type=DataType.FP32, dims=(-1,), allow_ragged_batch=True),),
    output=(
        ModelOutput(name="DOUBLED", data_type=DataType.FP32, dims=(-1,)),
        ModelOutput(name="SUMS", data_type=DataType.FP32, dims=(1,)),
    ),
    batch_input=(
        BatchInput(
            kind=Kind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO,
            target_name=("OFFSETS",),
            data_type=DataType.INT32,
            source_input=("X",),
        ),
    ),
    batch_output=(BatchOutput(target_name=("DOUBLED",), source_input=("X",)),),
)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return create(BackendSettings(name="onnxruntime"))


def execute(context: ModelContext, backend: Backend, *batch: dict[str, Any]) -> list[dict[str, list[Any]]]:
    """The outputs of each request of one batch, by name."""
    with HostedModel(backend, context) as hosted, hosted.instance(ON_CPU) as instance:
        results = instance.execute(
            *[request_of(context.config, {name: np.asarray(array) for name, array in inputs.items()}) for inputs in batch]
        )
    assert not [result.error for result in results if result.error is not None]
    return [{tensor.name: tensor.array.tolist() for tensor in result.outputs} for result in results]


def row(*numbers: float) -> np.ndarray[Any, Any]:
    return np.array([numbers], np.float32)


def test_requests_of_different_lengths_run_together(backend: Backend, tmp_path: Path) -> None:
    context = onnx_models.write(tmp_path, onnx_models.ragged_sums(), SUMS)
    answers = execute(context, backend, {"X": row(1, 2, 3)}, {"X": row(10)}, {"X": row()}, {"X": row(4, 5)})
    assert answers == [
        {"DOUBLED": [[2, 4, 6]], "SUMS": [[6]]},
        {"DOUBLED": [[20]], "SUMS": [[10]]},
        {"DOUBLED": [[]], "SUMS": [[0]]},
        {"DOUBLED": [[8, 10]], "SUMS": [[9]]},
    ]


@pytest.mark.parametrize("numbers", [(1.0, 2.0, 3.0), ()])
def test_a_request_that_is_alone_is_flat_too(backend: Backend, tmp_path: Path, numbers: tuple[float, ...]) -> None:
    context = onnx_models.write(tmp_path, onnx_models.ragged_sums(), SUMS)
    assert execute(context, backend, {"X": row(*numbers)}) == [
        {"DOUBLED": [[2 * number for number in numbers]], "SUMS": [[sum(numbers)]]}
    ]


@pytest.mark.parametrize("datatype", [DataType.INT32, DataType.FP32])
def test_every_kind_reaches_the_model(backend: Backend, tmp_path: Path, datatype: DataType) -> None:
    """Alone in its batch a request gets back, whole, what the model was fed."""
    ranks = {kind: 2 if kind is Kind.BATCH_ITEM_SHAPE else 1 for kind in Kind}
    fed = [(kind.name, datatype, ("A", "B")[:rank]) for kind, rank in ranks.items()]
    config = ModelConfig(
        name="kinds",
        backend="onnxruntime",
        max_batch_size=8,
        input=(ModelInput(name="X", data_type=DataType.FP32, dims=(-1, 2), allow_ragged_batch=True),),
        output=tuple(
            ModelOutput(name=f"OUT_{kind.name}", data_type=datatype, dims=(-1,))
            if rank == 2
            else ModelOutput(name=f"OUT_{kind.name}", data_type=datatype, dims=(1,), reshape=TensorReshape(shape=()))
            for kind, rank in ranks.items()
        ),
        batch_input=tuple(
            BatchInput(kind=kind, target_name=(kind.name,), data_type=datatype, source_input=("X",)) for kind in Kind
        ),
    )
    context = onnx_models.write(tmp_path, onnx_models.echo(("X", DataType.FP32, ["T"]), *fed), config)
    (answer,) = execute(context, backend, {"X": np.zeros((2, 3, 2), np.float32)})
    assert answer == {
        "OUT_BATCH_ELEMENT_COUNT": [12],
        "OUT_BATCH_ACCUMULATED_ELEMENT_COUNT": [12],
        "OUT_BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 12],
        "OUT_BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": [0] * 12,
        "OUT_BATCH_ITEM_SHAPE": [[3, 2], [3, 2]],
        "OUT_BATCH_ITEM_SHAPE_FLATTEN": [3, 2, 3, 2],
    }


def test_strings_may_be_ragged(backend: Backend, tmp_path: Path) -> None:
    config = ModelConfig(
        name="texts",
        backend="onnxruntime",
        max_batch_size=8,
        input=(ModelInput(name="TEXT", data_type=DataType.BYTES, dims=(-1,), allow_ragged_batch=True),),
        output=(ModelOutput(name="OUT_TEXT", data_type=DataType.BYTES, dims=(-1,)),),
        batch_output=(BatchOutput(target_name=("OUT_TEXT",), source_input=("TEXT",)),),
    )
    context = onnx_models.write(tmp_path, onnx_models.echo(("TEXT", DataType.BYTES, ["T"])), config)
    batch = [[[b"eins", b""]], [[]], [["grün".encode(), b"drei", b"vier"]]]
    answers = execute(context, backend, *[{"TEXT": np.array(texts, dtype=object).reshape(1, -1)} for texts in batch])
    assert answers == [{"OUT_TEXT": texts} for texts in batch]


def test_ragged_without_batching_runs_alone(backend: Backend, tmp_path: Path) -> None:
    config = msgspec.structs.replace(
        SUMS,
        max_batch_size=0,
        output=(
            ModelOutput(name="DOUBLED", data_type=DataType.FP32, dims=(-1,)),
            ModelOutput(name="SUMS", data_type=DataType.FP32, dims=(-1, 1)),
        ),
    )
    context = onnx_models.write(tmp_path, onnx_models.ragged_sums(), config)
    assert execute(context, backend, {"X": np.array([1, 2], np.float32)}) == [{"DOUBLED": [2, 4], "SUMS": [[3]]}]


def test_an_output_that_is_not_as_long_as_it_was_said_to_be_fails_the_batch(backend: Backend, tmp_path: Path) -> None:
    config = msgspec.structs.replace(SUMS, batch_output=(BatchOutput(target_name=("DOUBLED", "SUMS"), source_input=("X",)),))
    config = msgspec.structs.replace(
        config,
        output=(
            ModelOutput(name="DOUBLED", data_type=DataType.FP32, dims=(-1,)),
            ModelOutput(name="SUMS", data_type=DataType.FP32, dims=(-1,)),
        ),
    )
    context = onnx_models.write(tmp_path, onnx_models.ragged_sums(), config)
    with pytest.raises(Internal, match="output 'SUMS' has 2 elements, not the number"):
        execute(context, backend, {"X": row(1, 2)}, {"X": row(3)})


def changed(**changes: Any) -> ModelConfig:
    return msgspec.structs.replace(SUMS, **changes)


OFFSETS = SUMS.batch_input[0]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            changed(batch_input=()),
            "unable to load model 'sums', configuration expects 1 inputs, model provides 2",
        ),
        (
            changed(batch_input=(msgspec.structs.replace(OFFSETS, target_name=("OFFSETS", "MORE")),)),
            "unable to load model 'sums', configuration expects 3 inputs, model provides 2",
        ),
        (
            changed(batch_input=(msgspec.structs.replace(OFFSETS, target_name=("MORE",)),)),
            "unexpected inference input 'MORE', allowed inputs are: OFFSETS, X",
        ),
        (
            changed(batch_input=(msgspec.structs.replace(OFFSETS, target_name=("X",)),)),
            "unable to load model 'sums', batch input 'X' is fed by another input of that name",
        ),
        (
            changed(input=(), batch_input=(msgspec.structs.replace(OFFSETS, target_name=("OFFSETS", "OFFSETS")),)),
            "unable to load model 'sums', batch input 'OFFSETS' is fed by another input of that name",
        ),
        (
            changed(batch_input=(msgspec.structs.replace(OFFSETS, data_type=DataType.FP32),)),
            "configuration expects datatype TYPE_FP32 for batch input 'OFFSETS', model provides TYPE_INT32",
        ),
        (
            changed(batch_input=(msgspec.structs.replace(OFFSETS, kind=Kind.BATCH_ITEM_SHAPE),)),
            "unable to load model 'sums', batch input 'OFFSETS' of kind BATCH_ITEM_SHAPE has 2 dimensions, model provides [-1]",
        ),
        (
            changed(output=(*SUMS.output[:1], ModelOutput(name="SUMS", data_type=DataType.FP32, dims=(2,)))),
            "model 'sums', tensor 'SUMS': the model expects 2 dimensions (shape [-1,1])",
        ),
    ],
)
def test_what_does_not_fit_is_refused_at_load(backend: Backend, tmp_path: Path, config: ModelConfig, text: str) -> None:
    context = onnx_models.write(tmp_path, onnx_models.ragged_sums(), config)
    with pytest.raises(InvalidArgument, match=re.escape(text)), HostedModel(backend, context):
        pass


def test_a_ragged_input_is_flat_in_the_model(backend: Backend, tmp_path: Path) -> None:
    config = ModelConfig(
        name="m",
        backend="onnxruntime",
        max_batch_size=8,
        input=(ModelInput(name="INPUT", data_type=DataType.FP32, dims=(3,), allow_ragged_batch=True),),
        output=(ModelOutput(name="OUTPUT", data_type=DataType.FP32, dims=(3,)),),
    )
    context = onnx_models.write(tmp_path, onnx_models.identity(), config)
    text = (
        "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input 'INPUT', model "
        "provides [-1,3]"
    )
    with pytest.raises(InvalidArgument, match=re.escape(text)), HostedModel(backend, context):
        pass


def test_an_optional_input_cannot_be_ragged(backend: Backend, tmp_path: Path) -> None:
    config = ModelConfig(
        name="m",
        backend="onnxruntime",
        input=(
            ModelInput(name="INPUT", data_type=DataType.FP32, dims=(2,)),
            ModelInput(name="BIAS", data_type=DataType.FP32, dims=(2,), optional=True, allow_ragged_batch=True),
        ),
        output=(ModelOutput(name="OUTPUT", data_type=DataType.FP32, dims=(2,)),),
    )
    context = onnx_models.write(tmp_path, onnx_models.overridable(), config)
    text = "for ragged input 'BIAS', which is not supported for optional input"
    with pytest.raises(InvalidArgument, match=re.escape(text)), HostedModel(backend, context):
        pass


def test_a_batch_input_counts_as_an_input_for_completion(backend: Backend, tmp_path: Path) -> None:
    """As in Triton, also when it is the only one that is listed: then nothing is filled in, and the counts disagree."""
    context = onnx_models.write(tmp_path, onnx_models.ragged_sums(), msgspec.structs.replace(SUMS, input=()))
    assert backend.auto_complete(context) == context.config
