"""Admission: every refusal of Triton, word for word (asked of Triton 2.51, see the cases' names), and what is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.transcript import HINT
from tests.engine.fakes import config, tensor
from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput, ModelOutput, TensorReshape
from tpy.errors import InvalidArgument
from tpy.messages import DataType, InferenceRequest, Tensor
from tpy_data.engine.admission.admission import Admission

INT32 = DataType.INT32
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting max_batch_size "
    "to zero. See the model configuration docs for more info on max_batch_size."
)
ANON = "[request id: <id_unknown>] "
RAISE = "; raise max_batch_size in its config.pbtxt to allow more"


def model(name: str, max_batch_size: int, *inputs: tuple[str, DataType, tuple[int, ...], bool]) -> ModelConfig:
    return config(
        name,
        max_batch_size=max_batch_size,
        input=tuple(ModelInput(name=n, data_type=t, dims=d, optional=o) for n, t, d, o in inputs),
        output=tuple(ModelOutput(name=n.replace("IN", "OUT"), data_type=t, dims=d) for n, t, d, _ in inputs),
    )


F = DataType.FP32
B8 = model("b8", 8, ("IN", F, (2,), False))
B8V = model("b8v", 8, ("IN", F, (-1, 3), False))
TWO = model("b8two", 8, ("IN0", F, (2,), False), ("IN1", INT32, (2,), False))
OPT = model("b8opt", 8, ("IN0", F, (2,), False), ("IN1", INT32, (2,), True), ("IN2", INT32, (2,), True))
N0 = model("n0", 0, ("IN", F, (2, -1), False))
RAGGED = config(
    "ragged",
    max_batch_size=8,
    input=(
        ModelInput(name="IN", data_type=F, dims=(-1, 3), allow_ragged_batch=True),
        ModelInput(name="OPT", data_type=F, dims=(-1,), allow_ragged_batch=True, optional=True),
    ),
    output=(ModelOutput(name="OUT", data_type=F, dims=(-1,)),),
)
S8 = model("s8", 8, ("IN", DataType.BYTES, (-1,), False))


def t(name: str, *shape: int, d: DataType = F) -> Tensor:
    return tensor(*shape, name=name, datatype=d)


def i(name: str, *shape: int) -> Tensor:
    return t(name, *shape, d=INT32)


REFUSED: list[tuple[str, ModelConfig, list[Tensor], dict[str, Any], str]] = [
    ("too large", B8, [t("IN", 9, 2)], {}, ANON + "inference request batch-size must be <= 8 for 'b8'" + RAISE),
    (
        "too large, id",
        B8,
        [t("IN", 9, 2)],
        {"id": "q"},
        "[request id: q] inference request batch-size must be <= 8 for 'b8'" + RAISE,
    ),
    ("too large before wrong shape", B8, [t("IN", 9)], {}, ANON + "inference request batch-size must be <= 8 for 'b8'" + RAISE),
    ("too large before wrong type", B8, [i("IN", 9, 2)], {}, ANON + "inference request batch-size must be <= 8 for 'b8'" + RAISE),
    (
        "shape",
        B8,
        [t("IN", 1, 3)],
        {},
        ANON + f"unexpected shape for input 'IN' for model 'b8'. Expected [-1,2], got [1,3]. {NOTE}",
    ),
    (
        "no batch",
        B8,
        [t("IN", 2)],
        {},
        ANON + f"unexpected shape for input 'IN' for model 'b8'. Expected [-1,2], got [2]. {NOTE}",
    ),
    (
        "rank",
        B8,
        [t("IN", 1, 2, 1)],
        {},
        ANON + f"unexpected shape for input 'IN' for model 'b8'. Expected [-1,2], got [1,2,1]. {NOTE}",
    ),
    ("no shape", B8, [t("IN")], {}, ANON + "input 'IN' has no shape but model requires batch dimension for 'b8'"),
    ("batch 0", B8, [t("IN", 0, 2)], {}, ANON + "input byte size mismatch for input 'IN' for model 'b8'. Expected 8, got 0"),
    (
        "batch 0, wrong shape",
        B8,
        [t("IN", 0, 3)],
        {},
        ANON + f"unexpected shape for input 'IN' for model 'b8'. Expected [-1,2], got [0,3]. {NOTE}",
    ),
    (
        "batch 0, variable",
        B8V,
        [t("IN", 0, 2, 3)],
        {},
        ANON + "input byte size mismatch for input 'IN' for model 'b8v'. Expected 24, got 0",
    ),
    ("batch 0, nothing in it (ours)", B8V, [t("IN", 0, 0, 3)], {}, ANON + "inference request batch-size must be >= 1 for 'b8v'"),
    (
        "variable shape",
        B8V,
        [t("IN", 2, 5, 4)],
        {},
        ANON + f"unexpected shape for input 'IN' for model 'b8v'. Expected [-1,-1,3], got [2,5,4]. {NOTE}",
    ),
    ("type", B8, [i("IN", 1, 2)], {}, ANON + "inference input 'IN' data-type is 'INT32', but model 'b8' expects 'FP32'"),
    (
        "type and shape",
        B8,
        [i("IN", 1, 3)],
        {},
        ANON + "inference input 'IN' data-type is 'INT32', but model 'b8' expects 'FP32'",
    ),
    (
        "no input",
        B8,
        [],
        {},
        ANON + "expected 1 inputs but got 0 inputs for model 'b8'. Got input(s) [], but missing required input(s) ['IN']. "
        "Please provide all required input(s).",
    ),
    (
        "missing",
        TWO,
        [t("IN0", 1, 2)],
        {"id": "7"},
        (
            "[request id: 7] expected 2 inputs but got 1 inputs for model 'b8two'. Got input(s) ['IN0'], but missing required "
            "input(s) ['IN1']. Please provide all required input(s)."
        ),
    ),
    (
        "missing all",
        TWO,
        [],
        {},
        ANON + "expected 2 inputs but got 0 inputs for model 'b8two'. Got input(s) [], but missing required input(s) "
        "['IN0','IN1']. Please provide all required input(s).",
    ),
    ("unknown input", TWO, [t("IN0", 1, 2), t("X", 1, 2)], {"id": "a"}, "unexpected inference input 'X' for model 'b8two'"),
    ("two unknown inputs", TWO, [t("A", 1, 2), t("B", 1, 2)], {}, "unexpected inference input 'B' for model 'b8two'"),
    ("unknown before wrong type", TWO, [t("X", 1, 2), t("IN1", 1, 2)], {}, "unexpected inference input 'X' for model 'b8two'"),
    ("unknown before batch", TWO, [t("IN0", 9, 2), t("X", 9, 2)], {}, "unexpected inference input 'X' for model 'b8two'"),
    ("unknown before no shape", TWO, [t("IN0"), t("X", 1, 2)], {}, "unexpected inference input 'X' for model 'b8two'"),
    (
        "one too many",
        TWO,
        [t("IN0", 1, 2), i("IN1", 1, 2), t("X", 1, 2)],
        {},
        ANON + "expected 2 inputs but got 3 inputs for model 'b8two'. Got input(s) ['X','IN1','IN0'], but missing required "
        "input(s) []. Please provide all required input(s).",
    ),
    ("twice", B8, [t("IN", 1, 2), t("IN", 1, 2)], {"id": "d"}, "[request id: d] input 'IN' already exists in request"),
    (
        "twice before unknown output",
        B8,
        [t("IN", 1, 2), t("IN", 1, 2)],
        {"requested_outputs": ("Y",)},
        ANON + "input 'IN' already exists in request",
    ),
    (
        "unknown output",
        B8,
        [t("IN", 1, 2)],
        {"requested_outputs": ("Y", "Z"), "id": "o"},
        "unexpected inference output 'Y' for model 'b8'",
    ),
    (
        "unknown output first",
        TWO,
        [t("IN0", 1, 2)],
        {"requested_outputs": ("Y",)},
        "unexpected inference output 'Y' for model 'b8two'",
    ),
    (
        "batches differ",
        TWO,
        [t("IN0", 1, 2), i("IN1", 2, 2)],
        {"id": "mm"},
        "[request id: mm] input 'IN0' batch size does not match other inputs for 'b8two'",
    ),
    (
        "batches differ before too large",
        TWO,
        [t("IN0", 9, 2), i("IN1", 1, 2)],
        {},
        ANON + "input 'IN0' batch size does not match other inputs for 'b8two'",
    ),
    (
        "which of three, first",
        OPT,
        [t("IN0", 2, 2), i("IN1", 1, 2), i("IN2", 1, 2)],
        {},
        ANON + "input 'IN0' batch size does not match other inputs for 'b8opt'",
    ),
    (
        "which of three, last",
        OPT,
        [t("IN0", 1, 2), i("IN1", 1, 2), i("IN2", 2, 2)],
        {},
        ANON + "input 'IN1' batch size does not match other inputs for 'b8opt'",
    ),
    (
        "no shape, second",
        TWO,
        [t("IN0", 1, 2), i("IN1")],
        {},
        ANON + "input 'IN1' has no shape but model requires batch dimension for 'b8two'",
    ),
    (
        "no shape, both",
        TWO,
        [t("IN0"), i("IN1")],
        {},
        ANON + "input 'IN1' has no shape but model requires batch dimension for 'b8two'",
    ),
    (
        "1 and 0",
        TWO,
        [t("IN0", 1, 2), i("IN1", 0, 2)],
        {},
        ANON + "input byte size mismatch for input 'IN1' for model 'b8two'. Expected 8, got 0",
    ),
    (
        "0 and 1",
        TWO,
        [t("IN0", 0, 2), i("IN1", 1, 2)],
        {},
        ANON + "input 'IN0' batch size does not match other inputs for 'b8two'",
    ),
    (
        "0 and 0",
        TWO,
        [t("IN0", 0, 2), i("IN1", 0, 2)],
        {},
        ANON + "input byte size mismatch for input 'IN1' for model 'b8two'. Expected 8, got 0",
    ),
    (
        "last input first",
        TWO,
        [t("IN0", 1, 2, d=DataType.INT64), i("IN1", 1, 3)],
        {},
        ANON + f"unexpected shape for input 'IN1' for model 'b8two'. Expected [-1,2], got [1,3]. {NOTE}",
    ),
    (
        "optional: none",
        OPT,
        [],
        {},
        ANON + "expected number of inputs between 1 and 3 but got 0 inputs for model 'b8opt'. Got input(s) [], but missing "
        "required input(s) ['IN0']. Please provide all required input(s).",
    ),
    ("optional: unknown", OPT, [i("IN1", 1, 2), i("X", 1, 2)], {}, "unexpected inference input 'X' for model 'b8opt'"),
    (
        "optional: required missing (Triton runs it)",
        OPT,
        [i("IN1", 1, 2)],
        {},
        ANON + "expected number of inputs between 1 and 3 but got 1 inputs for model 'b8opt'. Got input(s) ['IN1'], but missing "
        "required input(s) ['IN0']. Please provide all required input(s).",
    ),
    (
        "no batching: shape",
        N0,
        [t("IN", 3, 3)],
        {"id": "id"},
        "[request id: id] unexpected shape for input 'IN' for model 'n0'. Expected [2,-1], got [3,3]. ",
    ),
    (
        "no batching: rank",
        N0,
        [t("IN", 1, 2, 3)],
        {},
        ANON + "unexpected shape for input 'IN' for model 'n0'. Expected [2,-1], got [1,2,3]. ",
    ),
    (
        "no batching: scalar",
        N0,
        [t("IN")],
        {},
        ANON + "unexpected shape for input 'IN' for model 'n0'. Expected [2,-1], got []. ",
    ),
    (
        "strings: batch 0",
        S8,
        [t("IN", 0, 2, d=DataType.BYTES)],
        {},
        ANON + "expected 2 string elements for inference input 'IN' for model 's8', got 0",
    ),
]


@pytest.mark.parametrize(("of", "inputs", "fields", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused_with_tritons_words(of: ModelConfig, inputs: list[Tensor], fields: dict[str, Any], message: str) -> None:
    sent = InferenceRequest(model_name=of.name, inputs=tuple(inputs), **fields)
    with pytest.raises(InvalidArgument) as refused:
        Admission(of).admit(sent)
    assert HINT.sub("", str(refused.value)) == HINT.sub("", message)


@pytest.mark.parametrize(
    ("of", "inputs", "fields", "said"),
    [
        (TWO, [t("IN0", 1, 2), t("X", 1, 2)], {}, "'b8two'; allowed inputs are: IN0 (FP32 [-1,2]), IN1 (INT32 [-1,2])"),
        (N0, [t("X", 1, 2)], {}, "'n0'; allowed inputs are: IN (FP32 [2,-1])"),
        (B8, [t("IN", 1, 2), t("X", 1, 2)], {}, "required input(s). Allowed inputs are: IN (FP32 [-1,2])"),
        (B8, [t("IN", 1, 2)], {"requested_outputs": ("Y",)}, "'b8'; allowed outputs are: OUT (FP32 [-1,2])"),
        (
            B8,
            [],
            {"parameters": {"in": 1.0, "id": "a"}},
            "required input(s). Allowed inputs are: IN (FP32 [-1,2]); taken for parameters: in, id",
        ),
    ],
    ids=["input", "input of a model that does not batch", "one too many", "output", "members of generate"],
)
def test_a_refusal_names_what_is_allowed(of: ModelConfig, inputs: list[Tensor], fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Admission(of).admit(InferenceRequest(model_name=of.name, inputs=tuple(inputs), **fields))
    assert str(refused.value).endswith(said)


def test_the_names_that_are_allowed_are_bounded() -> None:
    many = model("many", 0, *((f"INPUT{number}", F, (2,), True) for number in range(5000)))
    with pytest.raises(InvalidArgument) as refused:
        Admission(many).admit(InferenceRequest(model_name="many", inputs=(t("X", 2),)))
    text = str(refused.value)
    assert len(text) < 6000
    assert text.endswith(" more")


TAKEN: list[tuple[str, ModelConfig, list[Tensor], dict[str, Any], int]] = [
    ("one row", B8, [t("IN", 1, 2)], {}, 1),
    ("eight rows", B8, [t("IN", 8, 2)], {"requested_outputs": ("OUT", "OUT")}, 8),
    ("variable", B8V, [t("IN", 2, 5, 3)], {}, 2),
    ("empty but for the batch", B8V, [t("IN", 2, 0, 3)], {}, 2),
    ("any order", TWO, [i("IN1", 3, 2), t("IN0", 3, 2)], {}, 3),
    ("optional left out", OPT, [t("IN0", 1, 2)], {}, 1),
    ("optional given", OPT, [t("IN0", 1, 2), i("IN2", 1, 2)], {}, 1),
    ("no batching", N0, [t("IN", 2, 3)], {}, 1),
    ("no batching, empty", N0, [t("IN", 2, 0)], {}, 1),
    ("no inputs at all", model("none", 8), [], {}, 1),
]


@pytest.mark.parametrize(("of", "inputs", "fields", "rows"), [case[1:] for case in TAKEN], ids=[case[0] for case in TAKEN])
def test_taken(of: ModelConfig, inputs: list[Tensor], fields: dict[str, Any], rows: int) -> None:
    admitted = Admission(of).admit(InferenceRequest(model_name=of.name, inputs=tuple(inputs), **fields))
    assert admitted.batch_size == rows
    assert list(admitted.inputs) == [tensor.name for tensor in inputs]


def signature(of: ModelConfig, *inputs: Tensor) -> object:
    return Admission(of).admit(InferenceRequest(model_name=of.name, inputs=inputs)).signature


def test_what_may_share_a_batch() -> None:
    assert signature(B8, t("IN", 1, 2)) == signature(B8, t("IN", 4, 2))
    assert signature(B8V, t("IN", 1, 2, 3)) == signature(B8V, t("IN", 4, 2, 3))
    assert signature(B8V, t("IN", 1, 2, 3)) != signature(B8V, t("IN", 1, 4, 3))
    assert signature(OPT, t("IN0", 1, 2)) != signature(OPT, t("IN0", 1, 2), i("IN1", 1, 2))
    assert signature(OPT, t("IN0", 1, 2), i("IN2", 1, 2)) != signature(OPT, t("IN0", 1, 2), i("IN1", 1, 2))
    assert signature(OPT, i("IN2", 1, 2), t("IN0", 1, 2)) == signature(OPT, t("IN0", 1, 2), i("IN2", 1, 2))


def test_ragged_inputs_share_a_batch_whatever_their_shapes() -> None:
    assert signature(RAGGED, t("IN", 1, 2, 3)) == signature(RAGGED, t("IN", 4, 5, 3)) == signature(RAGGED, t("IN", 1, 0, 3))
    with_optional = signature(RAGGED, t("IN", 1, 2, 3), t("OPT", 1, 0))
    assert with_optional != signature(RAGGED, t("IN", 1, 2, 3))
    assert with_optional == signature(RAGGED, t("IN", 1, 7, 3), t("OPT", 1, 9))


@pytest.mark.parametrize(
    ("dims", "reshape", "batch", "given", "seen"),
    [
        ((4,), (2, 2), 8, (1, 4), (1, 2, 2)),
        ((-1, 4), (-1, 2, 2), 8, (1, 3, 4), (1, 3, 2, 2)),
        ((1,), (), 8, (5, 1), (5,)),
        ((4,), (2, 2), 0, (4,), (2, 2)),
        ((-1, 2, -1), (2, -1, -1), 0, (3, 2, 5), (2, 3, 5)),
    ],
)
def test_the_model_sees_the_reshape(
    dims: tuple[int, ...], reshape: tuple[int, ...], batch: int, given: tuple[int, ...], seen: tuple[int, ...]
) -> None:
    of = config(
        max_batch_size=batch, input=(ModelInput(name="IN", data_type=F, dims=dims, reshape=TensorReshape(shape=reshape)),)
    )
    admitted = Admission(of).admit(InferenceRequest(model_name="m", inputs=(t("IN", *given),)))
    assert admitted.inputs["IN"].array.shape == seen


NAMES = st.sampled_from(["IN0", "IN1", "IN2", "X"])
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
TENSORS = st.builds(
    lambda name, kind, shape: Tensor(name, kind, np.zeros(shape, kind.numpy)), NAMES, st.sampled_from([F, INT32]), SHAPES
)


@given(
    st.sampled_from([model("a", 2, *[(n, F, (2,), n == "IN1") for n in ("IN0", "IN1")]), OPT, N0]),
    st.lists(TENSORS, max_size=3),
    st.lists(st.sampled_from(["OUT0", "OUT1", "Y"]), max_size=2),
)
def test_what_is_taken_is_what_the_naive_rules_allow(of: ModelConfig, tensors: list[Tensor], outputs: list[str]) -> None:
    specs = {entry.name: entry for entry in of.input}
    names = [tensor.name for tensor in tensors]
    batching = of.max_batch_size > 0
    rows = {tensor.array.shape[0] if tensor.array.ndim else 0 for tensor in tensors} if batching else {1}
    fine = (
        len(set(names)) == len(names)
        and set(names) <= set(specs)
        and all(entry.optional or entry.name in names for entry in of.input)
        and set(outputs) <= {entry.name for entry in of.output}
        and (not tensors or (len(rows) == 1 and (not batching or 1 <= min(rows) <= of.max_batch_size)))
        and all(
            tensor.datatype is specs[tensor.name].data_type
            and len(tensor.array.shape) == len(specs[tensor.name].dims) + batching
            and all(
                want in (-1, have)
                for want, have in zip(specs[tensor.name].dims, tensor.array.shape[int(batching) :], strict=True)
            )
            for tensor in tensors
        )
    )
    sent = InferenceRequest(model_name=of.name, inputs=tuple(tensors), requested_outputs=tuple(outputs))
    if fine:
        Admission(of).admit(sent)
    else:
        with pytest.raises(InvalidArgument) as refused:
            Admission(of).admit(sent)
        assert ">= 1" not in str(refused.value) or 0 in rows


def test_a_request_with_very_many_inputs_is_refused_in_linear_time() -> None:
    one = t("IN", 1, 2)
    names = [f"I{number}" for number in range(30_000)]  # quadratic time would be half a minute
    request = InferenceRequest(model_name="b8", inputs=tuple(Tensor(name, F, one.array) for name in names), received_ns=0)
    with pytest.raises(InvalidArgument, match="expected 1 inputs but got 30000 inputs"):
        Admission(B8).admit(request)


class TestShapeTensors:
    """As Triton's core: a shape tensor has no batch dimension in a request, and only requests with the same values share a
    batch."""

    MODEL = config(
        "shapes",
        platform="tensorrt_plan",
        max_batch_size=8,
        input=(
            ModelInput(name="SHAPE", data_type=INT32, dims=(2,), is_shape_tensor=True),
            ModelInput(name="IN", data_type=F, dims=(2,)),
        ),
        output=(ModelOutput(name="OUT", data_type=F, dims=(-1, -1)),),
    )

    def admitted(self, rows: int, *values: int) -> Any:
        inputs = (Tensor("SHAPE", INT32, np.array(values, np.int32)), t("IN", rows, 2))
        return Admission(self.MODEL).admit(InferenceRequest(model_name="shapes", inputs=inputs))

    def test_the_batch_size_is_that_of_the_other_inputs(self) -> None:
        assert self.admitted(3, 5, 6).batch_size == 3

    def test_values_decide_who_shares_a_batch(self) -> None:
        assert self.admitted(3, 5, 6).signature == self.admitted(1, 5, 6).signature
        assert self.admitted(1, 5, 6).signature != self.admitted(1, 5, 7).signature

    def test_a_wrong_shape_is_refused(self) -> None:
        with pytest.raises(
            InvalidArgument, match=r"unexpected shape for input 'SHAPE' for model 'shapes'. Expected \[2\], got \[3\]"
        ):
            self.admitted(1, 5, 6, 7)
