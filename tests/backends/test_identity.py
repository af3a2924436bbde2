"""The identity backend: pairs, datatypes, delays and failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tpy.backend import BackendSettings, InstanceFailure, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelInput, ModelOutput, ModelParameter, TensorReshape
from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType
from tpy.testing import HostedInstance, HostedModel, request_of
from tpy_data.backends.identity import create
from tpy_data.backends.identity.backend import behaviour_of


def config_of(
    *pairs: tuple[str, str], datatype: DataType = DataType.FP32, dims: tuple[int, ...] = (-1,), **parameters: str
) -> ModelConfig:
    return ModelConfig(
        name="ident",
        backend="identity",
        input=tuple(ModelInput(name=given, data_type=datatype, dims=dims) for given, _ in pairs),
        output=tuple(ModelOutput(name=wanted, data_type=datatype, dims=dims) for _, wanted in pairs),
        parameters={key: ModelParameter(string_value=text) for key, text in parameters.items()},
    )


def load(config: ModelConfig) -> HostedModel:
    nowhere = Path("nowhere")
    context = ModelContext(
        name=config.name, version=1, generation=1, config=config, model_directory=nowhere, version_directory=nowhere
    )
    return HostedModel(create(BackendSettings(name="identity")), context)


def instance_of(model: HostedModel) -> HostedInstance:
    return model.instance(InstancePlacement(name="ident_0", kind=InstanceKind.KIND_CPU))


ONE = ("INPUT0", "OUTPUT0")


@pytest.mark.parametrize("datatype", [kind for kind in DataType if kind is not DataType.INVALID], ids=lambda kind: kind.value)
@pytest.mark.parametrize("count", [0, 3])
def test_every_datatype_comes_back_as_the_same_memory(datatype: DataType, count: int) -> None:
    numbers = [b"a\0\xff"] * count if datatype is DataType.BYTES else range(count)
    array = np.array(list(numbers), dtype=datatype.numpy)
    config = config_of(ONE, datatype=datatype)
    with load(config) as model:
        (tensor,) = instance_of(model).execute(request_of(config, {"INPUT0": array}))[0].outputs
    assert (tensor.name, tensor.datatype) == ("OUTPUT0", datatype)
    assert tensor.array.tolist() == array.tolist()
    assert not count or np.shares_memory(tensor.array, array)


def test_names_pair_by_number_not_by_place() -> None:
    config = config_of(("INPUT1", "OUTPUT0"), ("INPUT0", "OUTPUT1"))
    with load(config) as model:
        inputs = {"INPUT0": np.array([0], np.float32), "INPUT1": np.array([1], np.float32)}
        outputs = instance_of(model).execute(request_of(config, inputs))[0].outputs
    assert {tensor.name: tensor.array.tolist() for tensor in outputs} == {"OUTPUT0": [0], "OUTPUT1": [1]}


@pytest.mark.parametrize(
    ("datatype", "batch", "zeros"),
    [
        (DataType.INT32, 0, [[0, 0, 0]]),
        (DataType.INT32, 2, [[[0, 0, 0]], [[0, 0, 0]]]),
        (DataType.BYTES, 0, [[b"", b"", b""]]),
    ],
)
def test_an_optional_input_that_is_absent_counts_as_zeros(datatype: DataType, batch: int, zeros: list[Any]) -> None:
    config = config_of(("INPUT0", "OUTPUT0"), ("INPUT1", "OUTPUT1"), datatype=datatype, dims=(-1, 3))
    optional = msgspec.structs.replace(config.input[1], optional=True)
    config = msgspec.structs.replace(config, input=(config.input[0], optional), max_batch_size=4 if batch else 0)
    given = np.full((batch, 1, 3) if batch else (1, 3), b"x" if datatype is DataType.BYTES else 5, dtype=datatype.numpy)
    with load(config) as model:
        outputs = instance_of(model).execute(request_of(config, {"INPUT0": given}))[0].outputs
    assert {tensor.name: tensor.array.tolist() for tensor in outputs} == {"OUTPUT0": given.tolist(), "OUTPUT1": zeros}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (msgspec.structs.replace(config_of(ONE), output=()), "model configuration must have equal input/output pairs"),
        (config_of(("IN", "OUTPUT0")), "expected input name to follow INPUT<index> pattern, got 'IN'"),
        (config_of(("INPUT0", "OUT")), "expected output name to follow OUTPUT<index> pattern, got 'OUT'"),
        (config_of(("INPUT0", "OUTPUT1")), "expected input and output indices to match"),
        (
            msgspec.structs.replace(config_of(ONE), output=config_of(ONE, datatype=DataType.INT8).output),
            "expected input and output datatype to match, got TYPE_FP32 and TYPE_INT8",
        ),
        (
            msgspec.structs.replace(config_of(ONE), output=config_of(ONE, dims=(2, -1)).output),
            "expected input and output shape to match, got [-1] and [2,-1]",
        ),
        (config_of(ONE, execute_delay_ms="soon"), "parameter 'execute_delay_ms': expected a whole number >= 0, got 'soon'"),
        (config_of(ONE, creation_delay_sec="-1"), "parameter 'creation_delay_sec': expected a whole number >= 0, got '-1'"),
    ],
)
def test_what_does_not_pair_is_refused(config: ModelConfig, reason: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        load(config)
    assert reason in str(refusal.value)


def test_shapes_are_compared_after_reshaping() -> None:
    config = config_of(ONE, dims=(4,))
    output = msgspec.structs.replace(config.output[0], dims=(2, 2), reshape=TensorReshape(shape=(4,)))
    loaded = load(msgspec.structs.replace(config, output=(output,)))
    loaded.close()
    with pytest.raises(InvalidArgument):
        load(msgspec.structs.replace(config, output=(msgspec.structs.replace(output, reshape=TensorReshape(shape=(5,))),)))


@pytest.mark.parametrize(
    ("parameters", "delays_ms"),
    [
        ({}, [0, 0, 0]),
        ({"execute_delay_ms": "10"}, [10, 10, 10]),
        ({"execute_delay_ms": "10", "instance_wise_delay_multiplier": "3"}, [10, 30, 60]),
    ],
)
def test_delays_are_tritons(parameters: dict[str, str], delays_ms: list[int]) -> None:
    behaviour = behaviour_of(config_of(ONE, **parameters))
    assert [behaviour.delay_ns(number) // 1_000_000 for number in range(3)] == delays_ms


@pytest.mark.parametrize(
    ("parameter", "failure"), [("fail_execute", Internal), ("fail_instance", InstanceFailure)], ids=lambda value: str(value)
)
def test_an_execution_fails_as_configured_for_the_chosen_request(parameter: str, failure: type[Exception]) -> None:
    config = config_of(ONE, **{parameter: "told to", "fail_only_id": "7"})
    with load(config) as model:
        instance = instance_of(model)
        with pytest.raises(failure, match="told to"):
            instance.execute(request_of(config, {"INPUT0": np.zeros(1, np.float32)}, id="7"))
        assert instance.execute(request_of(config, {"INPUT0": np.zeros(1, np.float32)}, id="8"))[0].error is None


def test_loading_and_instances_fail_as_configured() -> None:
    with pytest.raises(Internal, match="no load"):
        load(config_of(ONE, fail_load="no load"))
    with load(config_of(ONE, fail_create_instance="no instance")) as model, pytest.raises(Internal, match="no instance"):
        instance_of(model)
