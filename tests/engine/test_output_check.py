"""Outputs that are not what the configuration says: one warning for each kind, and the outputs stay as they are."""

from __future__ import annotations

import logging

import pytest

from tests.engine.fakes import config, tensor
from tpy.config import ModelConfig
from tpy.config.model_config import BatchOutput, ModelOutput, TensorReshape, TransactionPolicy
from tpy.messages import DataType, Tensor
from tpy_data.engine.requests.outputs import OutputSelection

F = DataType.FP32
TWO = config(
    "m",
    max_batch_size=4,
    output=(ModelOutput(name="Y", data_type=F, dims=(-1,)), ModelOutput(name="Z", data_type=F, dims=(2,))),
)


def y(*shape: int, name: str = "Y", datatype: DataType = F) -> Tensor:
    return tensor(*shape, name=name, datatype=datatype)


def z(*shape: int) -> Tensor:
    return y(*shape, name="Z")


def warnings(
    caplog: pytest.LogCaptureFixture, of: ModelConfig, *responses: tuple[Tensor, ...], asked: tuple[str, ...] = ()
) -> list[str]:
    selection = OutputSelection(of)
    with caplog.at_level(logging.WARNING):
        for outputs in responses:
            selected = selection.select(outputs, asked)
            assert all(tensor in selected for tensor in outputs if tensor.name in ("Y", "Z"))
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ((y(1, 3),), "a response of model 'm' lacks 'Z', which its configuration names (it has 'Y')"),
        ((), "a response of model 'm' lacks 'Y', 'Z', which its configuration names (it has no outputs)"),
        ((y(1, 3), z(1, 2), y(1, name="W")), "has 'W', which its configuration does not name: dropped"),
        ((y(1, 3, datatype=DataType.FP64), z(1, 2)), "output 'Y' of model 'm' is FP64, its configuration says FP32"),
        ((y(1, 3), z(1, 1)), "output 'Z' of model 'm' has the shape [1,1], its configuration says [-1,2]"),
        ((y(3), z(1, 2)), "output 'Y' of model 'm' has the shape [3], its configuration says [-1,-1]"),
    ],
)
def test_it_is_told_once(caplog: pytest.LogCaptureFixture, outputs: tuple[Tensor, ...], said: str) -> None:
    (told,) = warnings(caplog, TWO, outputs, outputs)
    assert said in told


def test_each_kind_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert len(warnings(caplog, TWO, (y(1, 3, datatype=DataType.INT32),), (y(1, 3), z(1, 1)), (z(1, 1), y(1, 2, 2)))) == 3


@pytest.mark.parametrize(
    ("of", "outputs", "asked"),
    [
        (TWO, (y(4, 3), z(4, 2)), ()),
        (TWO, (z(4, 2),), ("Z",)),
        (config("m", max_batch_size=8, output=(ModelOutput(name="Y", data_type=F, dims=(1,)),)), (y(4),), ()),
        (
            config("m", max_batch_size=0, output=TWO.output, model_transaction_policy=TransactionPolicy(decoupled=True)),
            (z(2),),
            (),
        ),
        (
            config(
                "m",
                max_batch_size=0,
                output=(ModelOutput(name="Y", data_type=F, dims=(4,), reshape=TensorReshape(shape=(2, 2))),),
            ),
            (y(2, 2),),
            (),
        ),
        (config("m", max_batch_size=0, output=TWO.output, batch_output=(BatchOutput(target_name=("Z",)),)), (y(1), z(7)), ()),
    ],
    ids=[
        "as configured",
        "not asked for",
        "without a last size of 1",
        "a part of a decoupled answer",
        "the model's shape",
        "scattered",
    ],
)
def test_what_is_right_is_not_told(
    caplog: pytest.LogCaptureFixture, of: ModelConfig, outputs: tuple[Tensor, ...], asked: tuple[str, ...]
) -> None:
    selection = OutputSelection(of)
    with caplog.at_level(logging.WARNING):
        selection.select(outputs, asked)
    assert not caplog.records
