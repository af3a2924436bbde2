"""The tensors of a configuration, as arguments and results of the model: needs no PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from tpy.config import ModelConfig
from tpy.config.model_config import (
    BatchInput,
    BatchInputKind,
    ControlKind,
    ModelInput,
    ModelOutput,
    SequenceBatching,
    SequenceControl,
    SequenceControlInput,
    SequenceState,
)
from tpy.errors import InvalidArgument, Unsupported
from tpy.messages import DataType
from tpy_backends.pytorch.names import input_positions, output_positions
from tpy_backends.pytorch.signature import ModuleInput, ModuleOutput, ModuleSignature, read_call_spec

TWO = ModuleSignature(inputs=(ModuleInput(name="image"), ModuleInput(name="mask")), outputs=(ModuleOutput(), ModuleOutput()))
OPEN = ModuleSignature(inputs=(ModuleInput(name="image"),))


def _config(*inputs: str, outputs: tuple[str, ...] = (), **fields: Any) -> ModelConfig:
    return ModelConfig(
        name="m",
        input=tuple(ModelInput(name=name, data_type=DataType.FP32, dims=(1,)) for name in inputs),
        output=tuple(ModelOutput(name=name, data_type=DataType.FP32, dims=(1,)) for name in outputs),
        **fields,
    )


@pytest.mark.parametrize(
    ("names", "positions", "warned"),
    [
        (("mask", "image"), [1, 0], False),
        (("INPUT__1", "INPUT__0"), [1, 0], False),
        (("x__01", "y__0"), [1, 0], False),
        (("mask", "INPUT__0"), [0, 1], True),
        (("x", "y"), [0, 1], True),
        (("x__", "y__0"), [0, 1], True),
        (("x__0__1", "y__0"), [0, 1], True),
    ],
)
def test_names_of_inputs(names: tuple[str, ...], positions: list[int], warned: bool) -> None:
    warnings: list[str] = []
    assert input_positions(_config(*names), TWO, warnings.append) == dict(zip(names, positions, strict=True))
    assert bool(warnings) is warned
    assert all("Falling back to enforcing strict ordering from model configuration" in text for text in warnings)


def test_any_name_will_do_for_a_single_input() -> None:
    warnings: list[str] = []
    assert input_positions(_config("INPUT"), OPEN, warnings.append) == {"INPUT": 0}
    assert warnings == []


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("a__0", "b__2"), r"input 'b__2' refers to position 2, model provides 2 inputs: forward\(image: Tensor, mask: Tensor\)"),
        (("a__1", "b__1"), r"inputs 'a__1' and 'b__1' are both for position 1"),
        (("a", "b", "c"), r"input 'c' refers to position 2, model provides 2"),
    ],
)
def test_inputs_that_the_model_does_not_have(names: tuple[str, ...], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        input_positions(_config(*names), TWO)


@pytest.mark.parametrize(
    ("names", "positions"),
    [(("OUTPUT__1", "OUTPUT__0"), [1, 0]), (("b", "a"), [0, 1]), (("second__1",), [1]), (("only",), [0])],
)
def test_names_of_outputs(names: tuple[str, ...], positions: list[int]) -> None:
    assert output_positions(_config(outputs=names), TWO) == dict(zip(names, positions, strict=True))


KEYED = ModuleSignature(inputs=(ModuleInput(name="image"),), outputs=(ModuleOutput(key="box"), ModuleOutput(key="mask")))
DICT = ModuleSignature(
    inputs=(ModuleInput(name="image"),), outputs=(ModuleOutput(key="box"), ModuleOutput(key="mask")), gives_dict=True
)


@pytest.mark.parametrize(
    ("signature", "names", "left_out"),
    [
        (TWO, ("a", "b"), ""),
        (TWO, ("OUTPUT__1",), "OUTPUT__0"),
        (TWO, ("only",), "OUTPUT__1"),
        (KEYED, ("mask",), "box"),
        (DICT, ("box",), "mask"),
        (DICT, ("box", "mask"), ""),
        (OPEN, ("only",), ""),  # how many there are shows when it runs
    ],
)
def test_results_that_a_configuration_leaves_out_give_a_warning(
    signature: ModuleSignature, names: tuple[str, ...], left_out: str
) -> None:
    lines: list[str] = []
    output_positions(_config(outputs=names), signature, lines.append)
    text = f"model 'm': its configuration leaves out {left_out}, which the model gives: clients cannot ask for what is not in it"
    assert lines == ([text] if left_out else [])


def test_an_output_that_the_model_does_not_have() -> None:
    with pytest.raises(InvalidArgument, match=r"^The output OUTPUT__2 in the model .* doesn't exist\. This model has 2 outputs$"):
        output_positions(_config(outputs=("OUTPUT__2",)), TWO)
    assert output_positions(_config(outputs=("OUTPUT__2",)), OPEN) == {"OUTPUT__2": 2}


def test_keys_of_dicts() -> None:
    either = ModuleSignature(takes_dict=True, gives_dict=True)
    config = _config("b", "a", outputs=("y", "x__7"))
    assert input_positions(config, either) == {"b": 0, "a": 1}
    assert output_positions(config, either) == {"y": "y", "x__7": "x__7"}


def test_control_tensors_states_and_batch_inputs() -> None:
    control = SequenceControlInput(
        name="START__2", control=(SequenceControl(kind=ControlKind.CONTROL_SEQUENCE_START, int32_false_true=(0, 1)),)
    )
    state = SequenceState(input_name="S__1", output_name="S__0", data_type=DataType.FP32, dims=(1,))
    made = BatchInput(
        kind=BatchInputKind.BATCH_ELEMENT_COUNT, target_name=("count",), data_type=DataType.FP32, source_input=("X__0",)
    )
    model = ModuleSignature(inputs=tuple(ModuleInput(name=name) for name in "abcd"), outputs=(ModuleOutput(), ModuleOutput()))
    batching = SequenceBatching(control_input=(control,), state=(state,))
    config = _config("X__0", outputs=("Y__1",), sequence_batching=batching, batch_input=(made,))
    assert input_positions(config, model) == {"X__0": 0, "START__2": 2, "S__1": 1, "count": 3}
    assert output_positions(config, model) == {"Y__1": 1, "S__0": 0}


@pytest.mark.parametrize("name", ["START", "START__", "START__x"])
def test_a_control_tensor_has_a_name_that_tells_its_place(name: str) -> None:
    control = SequenceControlInput(name=name, control=(SequenceControl(kind=ControlKind.CONTROL_SEQUENCE_START),))
    config = _config("image", sequence_batching=SequenceBatching(control_input=(control,)))
    with pytest.raises(InvalidArgument, match=f"input '{name}' does not follow <name>__<index> naming convention"):
        input_positions(config, TWO)


def test_a_state_output_has_a_name_that_tells_its_place() -> None:
    state = SequenceState(input_name="mask", output_name="next", data_type=DataType.FP32, dims=(1,))
    config = _config("image", outputs=("Y__0",), sequence_batching=SequenceBatching(state=(state,)))
    assert input_positions(config, TWO) == {"image": 0, "mask": 1}
    with pytest.raises(InvalidArgument, match="is using sequence batching with state but state 'next' does not follow"):
        output_positions(config, TWO)


LEAF = '{"type": null, "context": null, "children_spec": []}'


def _spec(kind: str, context: str, *children: str) -> str:
    return f'{{"type": "{kind}", "context": {context}, "children_spec": [{", ".join(children)}]}}'


def test_the_call_specification_of_a_package() -> None:
    args = _spec("builtins.tuple", '"null"', LEAF, _spec("builtins.dict", r'"[\"a\", \"b\"]"', LEAF, LEAF))
    kwargs = _spec("builtins.dict", '["mask"]', LEAF)
    results = _spec("builtins.dict", r'"[\"sum\", \"rest\"]"', LEAF, _spec("builtins.list", "null", LEAF, LEAF))
    whole = _spec("builtins.tuple", "null", args, kwargs)
    signature = read_call_spec(f"[1, {whole}]", f"[1, {results}]")
    assert [argument.path for argument in signature.inputs] == ["ARGS[0]", "ARGS[1][a]", "ARGS[1][b]", "KWARGS[mask]"]
    assert [argument.name for argument in signature.inputs] == ["INPUT__0", "INPUT__1", "INPUT__2", "mask"]
    assert signature.outputs is not None
    assert [(result.path, result.key) for result in signature.outputs] == [
        ("RESULT[sum]", "sum"),
        ("RESULT[rest][0]", ""),
        ("RESULT[rest][1]", ""),
    ]
    config = _config("KWARGS[mask]", "ARGS[0]", "ARGS[1][b]", "ARGS[1][a]", outputs=("RESULT[rest][1]", "RESULT[sum]"))
    assert list(input_positions(config, signature).values()) == [3, 0, 2, 1]
    assert list(output_positions(config, signature).values()) == [2, 0]


def test_a_package_that_returns_one_tensor() -> None:
    whole = _spec("builtins.tuple", "null", _spec("builtins.tuple", "null", LEAF), _spec("builtins.dict", '"[]"'))
    signature = read_call_spec(f"[1, {whole}]", f"[1, {LEAF}]")
    assert signature.outputs == (ModuleOutput(path="RESULT"),)


@pytest.mark.parametrize("text", ["", "no JSON", "[2, {}]", "[1, 5]", "{}", "5"])
def test_a_call_specification_that_cannot_be_read(text: str) -> None:
    with pytest.raises(Exception, match="call specification"):
        read_call_spec(text, f"[1, {LEAF}]")


def test_a_package_of_other_values() -> None:
    whole = _spec("builtins.tuple", "null", _spec("collections.namedtuple", "null", LEAF), _spec("builtins.dict", '"[]"'))
    with pytest.raises(Unsupported, match=r"values of type 'collections\.namedtuple'"):
        read_call_spec(f"[1, {whole}]", f"[1, {LEAF}]")
