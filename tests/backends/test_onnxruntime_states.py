"""Implicit state in the onnxruntime backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from tpy.backend import Backend, BackendSettings, InstancePlacement, SequenceState
from tpy.config import ModelConfig
from tpy.config.model_config import (
    ControlKind,
    InstanceKind,
    ModelInput,
    ModelOutput,
    SequenceBatching,
    SequenceControl,
    SequenceControlInput,
)
from tpy.config.model_config import SequenceState as StateConfig
from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType
from tpy.testing.hosting import HostedInstance, HostedModel
from tpy.testing.requests import SampleRequest, request_of
from tpy_backends.onnxruntime import create

from . import onnx_models

ROWS = 4
PLACEMENT = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)


def summing(batch: Sequence[int | str] = ("N",)) -> bytes:
    """OUT = X + S, S_NEXT = OUT; X, S [batch, 2]. Fails when the sizes of X and S differ."""
    shape = [*batch, 2]
    tensors = [onnx_models.value(name, DataType.FP32, shape) for name in ("X", "S", "OUT", "S_NEXT")]
    nodes = [helper.make_node("Add", ["X", "S"], ["OUT"]), helper.make_node("Identity", ["OUT"], ["S_NEXT"])]
    return onnx_models.model(nodes, tensors[:2], tensors[2:])


def growing() -> bytes:
    """S_NEXT [N, L + 1] = S followed by X; OUT [N, 1] = their sum."""
    axes = onnx.numpy_helper.from_array(np.array([1], np.int64), "axes")
    nodes = [
        helper.make_node("Concat", ["S", "X"], ["S_NEXT"], axis=1),
        helper.make_node("ReduceSum", ["S_NEXT", "axes"], ["OUT"], keepdims=1),
    ]
    inputs = [onnx_models.value("X", DataType.FP32, ["N", 1]), onnx_models.value("S", DataType.FP32, ["N", "L"])]
    outputs = [onnx_models.value("OUT", DataType.FP32, ["N", 1]), onnx_models.value("S_NEXT", DataType.FP32, ["N", "M"])]
    return onnx_models.model(nodes, inputs, outputs, [axes])


def config_of(*states: StateConfig, batch: int = ROWS, dims: tuple[int, ...] = (2,), **changes: Any) -> ModelConfig:
    datatype = states[0].data_type
    fields: dict[str, Any] = {
        "name": "m",
        "backend": "onnxruntime",
        "max_batch_size": batch,
        "input": (ModelInput(name="X", data_type=datatype, dims=dims),),
        "output": (ModelOutput(name="OUT", data_type=datatype, dims=dims),),
        "sequence_batching": SequenceBatching(state=states),
    }
    return ModelConfig(**{**fields, **changes})


def state(datatype: DataType = DataType.FP32, dims: tuple[int, ...] = (2,)) -> StateConfig:
    return StateConfig(input_name="S", output_name="S_NEXT", data_type=datatype, dims=dims)


class Sequences:
    """Runs requests of sequences on an instance, as the engine does."""

    def __init__(self, instance: HostedInstance, config: ModelConfig, initial: np.ndarray[Any, Any]) -> None:
        initial.flags.writeable = False
        self.instance = instance
        self.config = config
        self.initial = initial
        self.states: dict[int, SequenceState] = {}

    def request(self, number: int, x: Any, dtype: Any = np.float32) -> SampleRequest:
        cell = self.states.setdefault(number, SequenceState({"S": self.initial}))
        made = request_of(self.config, {"X": np.asarray(x, dtype)})
        return SampleRequest(inputs=made.inputs, batch_size=made.batch_size, state=cell)

    def run(self, **steps: Any) -> list[Any]:
        """OUT of each, or its error's text: `s1=[[1, 2]]` is the next request of sequence 1."""
        results = self.instance.execute(*(self.request(int(name[1:]), x) for name, x in steps.items()))
        return [str(result.error) if result.error else result.outputs[0].array.tolist() for result in results]


@pytest.fixture
def backend() -> Backend:
    return create(BackendSettings(name="onnxruntime"))


def test_states_are_joined_and_cut_by_rows(backend: Backend, tmp_path: Path) -> None:
    context = onnx_models.write(tmp_path, summing(), config_of(state()))
    with HostedModel(backend, context) as model, model.instance(PLACEMENT) as instance:
        sequences = Sequences(instance, context.config, np.array([[10, 20]], np.float32))
        assert sequences.run(s1=[[1, 1]]) == [[[11, 21]]]
        assert sequences.run(s1=[[1, 1]], s2=[[2, 2]], s3=[[3, 3]]) == [[[12, 22]], [[12, 22]], [[13, 23]]]
        assert sequences.run(s3=[[1, 0]], s1=[[0, 1]]) == [[[14, 23]], [[12, 23]]]
        assert sequences.run(s2=[[1, 1]]) == [[[13, 23]]]
        kept = sequences.states[3].values["S"]
        assert isinstance(kept, np.ndarray)
        assert kept.base is None, "a row keeps no more alive than itself"


def test_without_a_batch_dimension_the_output_is_the_next_input(backend: Backend, tmp_path: Path) -> None:
    context = onnx_models.write(tmp_path, summing(()), config_of(state(), batch=0))
    with HostedModel(backend, context) as model, model.instance(PLACEMENT) as instance:
        sequences = Sequences(instance, context.config, np.zeros(2, np.float32))
        assert [sequences.run(s1=[1, 2]) for _ in range(3)] == [[[1, 2]], [[2, 4]], [[3, 6]]]


def test_a_failed_run_leaves_the_states(backend: Backend, tmp_path: Path) -> None:
    context = onnx_models.write(tmp_path, growing(), config_of(state(dims=(-1,)), dims=(1,)))
    with HostedModel(backend, context) as model, model.instance(PLACEMENT) as instance:
        sequences = Sequences(instance, context.config, np.zeros((1, 1), np.float32))
        assert sequences.run(s1=[[5]]) == [[[5]]]
        before = sequences.states[1].values
        sequences.states[2] = SequenceState({"S": np.zeros((1, 1, 1), np.float32)})
        with pytest.raises(Internal, match="onnx runtime error"):
            sequences.run(s2=[[1]])
        assert sequences.states[1].values is before


def test_states_that_grow_apart_are_run_apart(backend: Backend, tmp_path: Path) -> None:
    context = onnx_models.write(tmp_path, growing(), config_of(state(dims=(-1,)), dims=(1,)))
    with HostedModel(backend, context) as model, model.instance(PLACEMENT) as instance:
        sequences = Sequences(instance, context.config, np.zeros((1, 1), np.float32))
        sequences.run(s1=[[1]])
        sequences.run(s1=[[2]])
        assert sequences.run(s2=[[10]], s1=[[3]], s3=[[20]]) == [[[10]], [[6]], [[20]]]
        assert sequences.run(s1=[[4]], s2=[[1]], s3=[[2]]) == [[[10]], [[11]], [[22]]]
        sequences.states[4] = SequenceState({"S": np.zeros((1, 1, 1), np.float32)})
        told = sequences.run(s1=[[5]], s4=[[1]])
        assert told[0] == [[15]]
        assert "onnx runtime error" in told[1], "only the sequence with the bad state fails"


def test_a_state_that_does_not_fit_the_configuration_is_refused(backend: Backend, tmp_path: Path) -> None:
    context = onnx_models.write(tmp_path, growing(), config_of(state(dims=(1,)), dims=(1,)))
    context = msgspec.structs.replace(context, config=config_of(state(dims=(1,)), dims=(1,)))
    with HostedModel(backend, context) as model, model.instance(PLACEMENT) as instance:
        sequences = Sequences(instance, context.config, np.zeros((1, 1), np.float32))
        for _ in range(2):
            (told,) = sequences.run(s1=[[1]])
            assert told == "state 'S_NEXT' was returned with shape [1, 2], expected [1, 1]"


@pytest.mark.parametrize("datatype", [kind for kind in DataType if kind not in (DataType.INVALID,)])
@pytest.mark.parametrize("count", [1, 2])
def test_every_datatype_is_carried(backend: Backend, tmp_path: Path, datatype: DataType, count: int) -> None:
    shape: onnx_models.Shape = ["N", 2]
    tensors = [onnx_models.value(name, datatype, shape) for name in ("X", "S", "OUT", "S_NEXT")]
    nodes = [helper.make_node("Identity", ["S"], ["OUT"]), helper.make_node("Identity", ["X"], ["S_NEXT"])]
    content = onnx_models.model(nodes, tensors[:2], tensors[2:])
    context = onnx_models.write(tmp_path, content, config_of(state(datatype)))
    values: list[np.ndarray[Any, Any]] = []
    for step in range(3):
        elements: Any = [[f"{step}é".encode(), b""]] if datatype is DataType.BYTES else [[step % 2, 1]]
        values.append(np.array(elements, dtype=object) if datatype is DataType.BYTES else np.array(elements, datatype.numpy))
    with HostedModel(backend, context) as model, model.instance(PLACEMENT) as instance:
        sequences = Sequences(instance, context.config, values[0])
        for before, now in ((values[0], values[1]), (values[1], values[2]), (values[2], values[0])):
            requests = [sequences.request(number, now, datatype.numpy) for number in range(count)]
            for result in instance.execute(*requests):
                assert result.error is None
                assert result.outputs[0].array.dtype == datatype.numpy
                assert result.outputs[0].array.tolist() == before.tolist()


def test_a_state_may_be_an_output_as_well(backend: Backend, tmp_path: Path) -> None:
    outputs = tuple(ModelOutput(name=name, data_type=DataType.FP32, dims=(2,)) for name in ("S_NEXT", "OUT"))
    context = onnx_models.write(tmp_path, summing(), config_of(state(), output=outputs))
    with HostedModel(backend, context) as model, model.instance(PLACEMENT) as instance:
        sequences = Sequences(instance, context.config, np.zeros((1, 2), np.float32))
        (result,) = instance.execute(sequences.request(1, [[1, 2]]))
        assert {tensor.name: tensor.array.tolist() for tensor in result.outputs} == {"S_NEXT": [[1, 2]], "OUT": [[1, 2]]}
        assert sequences.run(s1=[[1, 2]]) == [[[2, 4]]]


def test_completion_leaves_out_what_the_server_makes(backend: Backend, tmp_path: Path) -> None:
    bare = ModelConfig(name="m", backend="onnxruntime", sequence_batching=SequenceBatching(state=(state(),)))
    completed = backend.auto_complete(onnx_models.write(tmp_path, summing(), bare))
    assert ([given.name for given in completed.input], [made.name for made in completed.output]) == (["X"], ["OUT"])


def _control(name: str, **form: Any) -> SequenceControlInput:
    return SequenceControlInput(name=name, control=(SequenceControl(kind=ControlKind.CONTROL_SEQUENCE_READY, **form),))


@pytest.mark.parametrize(
    ("batching", "told"),
    [
        (SequenceBatching(), "configuration expects 1 inputs, model provides 2"),
        (
            SequenceBatching(state=(msgspec.structs.replace(state(), input_name="T"),)),
            "unexpected state input 'T', allowed inputs are: S, X",
        ),
        (
            SequenceBatching(state=(msgspec.structs.replace(state(), output_name="T"),)),
            "unexpected state output 'T', allowed outputs are: OUT, S_NEXT",
        ),
        (
            SequenceBatching(state=(state(DataType.INT32),)),
            "configuration expects datatype TYPE_INT32 for state input 'S', model provides TYPE_FP32",
        ),
        (SequenceBatching(state=(state(dims=(3,)),)), r"tensor 'S': the model expects 2 dimensions \(shape \[-1,2\]\)"),
        (
            SequenceBatching(control_input=(_control("S", int32_false_true=(0, 1)),)),
            "configuration expects datatype TYPE_INT32 for sequence control input 'S', model provides TYPE_FP32",
        ),
        (
            SequenceBatching(control_input=(_control("R", bool_false_true=(False, True)),)),
            "unexpected sequence control input 'R', allowed inputs are: S, X",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_refused_at_load(
    backend: Backend, tmp_path: Path, batching: SequenceBatching, told: str
) -> None:
    context = onnx_models.write(tmp_path, summing(), config_of(state(), sequence_batching=batching))
    with pytest.raises(InvalidArgument, match=told):
        backend.load(context)
