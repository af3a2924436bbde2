"""The description of a model's tensors for clients."""

from __future__ import annotations

from tpy.config import ModelConfig, describe
from tpy.config.model_config import ModelInput, ModelOutput, TensorReshape, TransactionPolicy
from tpy.messages import DataType, TensorDescription

CONFIG = ModelConfig(
    name="m",
    backend="python",
    max_batch_size=4,
    input=(
        ModelInput(name="A", data_type=DataType.FP32, dims=(1,), reshape=TensorReshape(), optional=True),
        ModelInput(name="B", data_type=DataType.BYTES, dims=(-1, 3), allow_ragged_batch=True),
    ),
    output=(ModelOutput(name="C", data_type=DataType.INT64, dims=(2,), label_filename="labels.txt"),),
)


def test_shapes_are_dims_with_the_batch_in_front() -> None:
    described = describe(CONFIG, 3, {"C": ("cat", "dog")}, namespace="n")
    assert (described.name, described.version, described.platform, described.namespace) == ("m", 3, "python", "n")
    assert described.batches
    assert not described.decoupled
    assert described.inputs == (
        TensorDescription(name="A", datatype=DataType.FP32, shape=(-1, 1), optional=True),
        TensorDescription(name="B", datatype=DataType.BYTES, shape=(-1, -1, 3), ragged=True),
    )
    assert described.outputs == (TensorDescription(name="C", datatype=DataType.INT64, shape=(-1, 2), labels=("cat", "dog")),)
    assert described.input_by_name["B"] is described.inputs[1]
    assert described.output_by_name["C"] is described.outputs[0]


def test_a_model_that_does_not_batch() -> None:
    config = ModelConfig(
        name="m",
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        output=(ModelOutput(name="C", data_type=DataType.FP16, dims=(2,)),),
        model_transaction_policy=TransactionPolicy(decoupled=True),
    )
    described = describe(config, 1)
    assert described.platform == "onnxruntime_onnx"
    assert described.decoupled
    assert not described.batches
    assert described.outputs[0].shape == (2,)
    assert described.outputs[0].labels == ()
