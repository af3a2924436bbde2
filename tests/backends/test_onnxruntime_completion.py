"""Auto-completion of ONNX models: the rules of Triton's onnxruntime backend, as a table."""

from __future__ import annotations

import msgspec
import pytest

from tpy.config import ModelConfig
from tpy.config.model_config import (
    BatchInput,
    DynamicBatching,
    ModelInput,
    ModelOutput,
    SequenceBatching,
    TensorReshape,
)
from tpy.errors import InvalidArgument
from tpy.messages import DataType
from tpy_backends.completion import complete
from tpy_backends.signature import Signature, TensorInfo

BARE = ModelConfig(name="m", backend="onnxruntime")


def signature(*inputs: TensorInfo, outputs: tuple[TensorInfo, ...]) -> Signature:
    return Signature(inputs={info.name: info for info in inputs}, outputs={info.name: info for info in outputs}, initializers={})


def io(name: str, *shape: int, datatype: DataType = DataType.FP32) -> TensorInfo:
    return TensorInfo(name, datatype, shape)


BATCHING = signature(io("A", -1, 3), io("B", -1), outputs=(io("Y", -1, -1, 2, datatype=DataType.BYTES),))
FIXED = signature(io("A", 1, 3), io("S"), outputs=(io("Y", -1, 2),))


def completed(config: ModelConfig, model: Signature, default: int = 4) -> ModelConfig:
    return complete(config, model, default_max_batch_size=default)


def test_a_batching_model_gets_everything() -> None:
    config = completed(BARE, BATCHING)
    assert config == msgspec.structs.replace(
        BARE,
        max_batch_size=4,
        dynamic_batching=DynamicBatching(),
        input=(
            ModelInput(name="A", data_type=DataType.FP32, dims=(3,)),
            ModelInput(name="B", data_type=DataType.FP32, dims=(1,), reshape=TensorReshape(shape=())),
        ),
        output=(ModelOutput(name="Y", data_type=DataType.BYTES, dims=(-1, 2)),),
    )


def test_a_model_with_another_first_dimension_anywhere_does_not_batch() -> None:
    config = completed(BARE, FIXED)
    assert config == msgspec.structs.replace(
        BARE,
        input=(
            ModelInput(name="A", data_type=DataType.FP32, dims=(1, 3)),
            ModelInput(name="S", data_type=DataType.FP32, dims=(1,)),
        ),
        output=(ModelOutput(name="Y", data_type=DataType.FP32, dims=(-1, 2)),),
    )


@pytest.mark.parametrize(
    ("given", "default", "expected", "dynamic"),
    [
        (0, 4, 4, True),
        (0, 16, 16, True),
        (0, 1, 1, False),
        (0, 0, 0, False),
        (0, -3, 0, False),
        (1, 4, 1, False),
        (8, 4, 8, True),
    ],
)
def test_batch_size_and_batcher(given: int, default: int, expected: int, dynamic: bool) -> None:
    config = completed(msgspec.structs.replace(BARE, max_batch_size=given), BATCHING, default)
    assert config.max_batch_size == expected
    assert (config.dynamic_batching is not None) is dynamic
    assert len(config.input[0].dims) == (1 if expected else 2)


def test_a_batcher_that_is_configured_stays() -> None:
    given = DynamicBatching(max_queue_delay_microseconds=5)
    assert completed(msgspec.structs.replace(BARE, dynamic_batching=given), BATCHING).dynamic_batching is given
    sequences = completed(msgspec.structs.replace(BARE, sequence_batching=SequenceBatching()), BATCHING)
    assert sequences.dynamic_batching is None
    assert sequences.max_batch_size == 4


def test_a_batch_size_for_a_model_that_does_not_batch_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        completed(msgspec.structs.replace(BARE, max_batch_size=2), FIXED)
    assert str(refusal.value) == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified; "
        "the first dimension is not variable in 'A' [1,3], 'S' []; convert it again with a dynamic first dimension, "
        "or set max_batch_size: 0"
    )


INPUT = (ModelInput(name="A", data_type=DataType.FP32, dims=(3,)),)
OUTPUT = (ModelOutput(name="Y", data_type=DataType.BYTES, dims=(-1, 2)),)


def test_nothing_is_done_when_inputs_and_outputs_are_listed_even_wrongly() -> None:
    listed = msgspec.structs.replace(BARE, input=INPUT, output=OUTPUT, max_batch_size=2)
    assert completed(listed, FIXED) is listed
    batch_input = msgspec.structs.replace(BARE, batch_input=(BatchInput(target_name=("A",)),), output=OUTPUT)
    assert completed(batch_input, BATCHING) is batch_input


def test_a_partial_list_is_kept_and_an_empty_one_filled() -> None:
    only_inputs = completed(msgspec.structs.replace(BARE, input=INPUT), BATCHING)
    assert only_inputs.input is INPUT
    assert [output.name for output in only_inputs.output] == ["Y"]
    only_outputs = completed(msgspec.structs.replace(BARE, output=OUTPUT), BATCHING)
    assert only_outputs.output is OUTPUT
    assert [given.name for given in only_outputs.input] == ["A", "B"]
    only_batch_input = completed(msgspec.structs.replace(BARE, batch_input=(BatchInput(target_name=("A",)),)), BATCHING)
    assert only_batch_input.input == ()
    assert [output.name for output in only_batch_input.output] == ["Y"]
