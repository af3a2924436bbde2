"""Bodies of MLflow's scoring protocol as tensors, and outputs as predictions."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType, InferenceResponse, ModelDescription, Tensor, TensorDescription
from tpy_platforms.mlflow.core.columns import read_csv, read_json
from tpy_platforms.mlflow.core.predictions import encode_predictions
from tpy_platforms.mlflow.core.signature import UNKNOWN, Field, MlflowModel, read_model
from tpy_platforms.mlflow.core.tensors import ModelRequests, asked_of


def described(
    *inputs: tuple[str, DataType, tuple[int, ...]], optional: frozenset[str] = frozenset(), batch: int = 8
) -> ModelDescription:
    tensors = tuple(
        TensorDescription(name=name, datatype=kind, shape=shape, optional=name in optional) for name, kind, shape in inputs
    )
    by_name = {tensor.name: tensor for tensor in tensors}
    return ModelDescription(
        name="m",
        version=1,
        platform="x",
        max_batch_size=batch,
        decoupled=False,
        inputs=tensors,
        outputs=tensors,
        input_by_name=by_name,
        output_by_name=by_name,
    )


MATRIX = described(("X", DataType.FP32, (-1, 2)))
TABLE = described(
    ("age", DataType.INT64, (-1, 1)),
    ("name", DataType.BYTES, (-1, 1)),
    ("since", DataType.BYTES, (-1, 1)),
    ("photo", DataType.BYTES, (-1, 1)),
    ("weight", DataType.FP64, (-1, 1)),
    optional=frozenset({"photo", "weight", "since"}),
)
TABLE_MODEL = MlflowModel(
    flavor="python_function",
    inputs=(
        Field(name="age", type="long"),
        Field(name="name", type="string"),
        Field(name="since", type="datetime", required=False),
        Field(name="photo", type="binary", required=False),
        Field(name="weight", type="double", required=False),
    ),
)
NAMED = MlflowModel(flavor="sklearn", inputs=(Field(name="a", type="double"), Field(name="b", type="double")), output="predict")


def asked(body: object, model: ModelDescription = MATRIX, imported: MlflowModel = UNKNOWN) -> ModelRequests:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asked_of(read_csv(text) if isinstance(body, bytes) else read_json(text), model, imported)


def given(body: object, model: ModelDescription = MATRIX, imported: MlflowModel = UNKNOWN) -> dict[str, Any]:
    [batch] = asked(body, model, imported).batches
    return {tensor.name: tensor.array.tolist() for tensor in batch}


ROWS = [[1.5, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": ROWS},
        {"instances": ROWS},
        {"inputs": {"X": ROWS}},
        {"instances": [{"X": row} for row in ROWS]},
        {"dataframe_split": {"data": ROWS}},
        {"dataframe_split": {"columns": ["a", "b"], "index": [7, 8], "data": ROWS}},
        {"dataframe_split": {"columns": [0, 1], "data": ROWS}},
        {"dataframe_records": [{"a": 1.5, "b": 2}, {"b": 4, "a": 3}]},
        {"inputs": {"a": [1.5, 3], "b": [2, 4]}},
        {"inputs": [{"a": 1.5, "b": 2}, {"a": 3, "b": 4}], "params": {"x": 1}},
        b"a,b\n1.5,2\n3,4.0\n",
    ],
)
def test_the_same_rows_in_every_form(body: object) -> None:
    assert given(body) == {"X": ROWS}


def test_columns_go_by_the_names_of_the_signature() -> None:
    for body in ({"dataframe_split": {"columns": ["b", "extra", "a"], "data": [[2, 9, 1.5], [4, 9, 3]]}}, b"b,a\n2,1.5\n4,3\n"):
        assert given(body, MATRIX, NAMED) == {"X": ROWS}
    with pytest.raises(InvalidArgument, match="missing the columns b, got a"):
        given({"inputs": {"a": [1]}}, MATRIX, NAMED)


def test_a_table_of_all_types() -> None:
    photo = base64.b64encode(b"\x00\xff").decode()
    record = {"age": 3, "name": "ü", "since": "2026-01-02T03:04:05", "photo": photo, "weight": None}
    table = given({"dataframe_records": [record, {**record, "age": 4.0, "weight": 2}]}, TABLE, TABLE_MODEL)
    assert table["age"] == [[3], [4]]
    assert table["name"] == [["ü".encode()]] * 2
    assert table["since"] == [[b"2026-01-02T03:04:05"]] * 2
    assert table["photo"] == [[b"\x00\xff"]] * 2
    assert np.isnan(table["weight"][0][0])
    assert table["weight"][1] == [2.0]
    times = given({"inputs": {"age": 1, "name": "a", "since": [1_000_000_000]}}, TABLE, TABLE_MODEL)
    assert times["since"] == [[b"1970-01-01T00:00:01.000000000"]]
    cells = given(b'age,name,weight,more\n3,"a, b",,x\n4,c,1e3,x\n', TABLE, TABLE_MODEL)
    assert (cells["age"], cells["name"]) == ([[3], [4]], [[b"a, b"], [b"c"]])
    assert np.isnan(cells["weight"][0][0])
    assert "photo" not in cells


def test_columns_without_values_are_left_out_if_they_are_optional() -> None:
    assert given({"inputs": {"age": [1], "name": ["a"], "weight": None}}, TABLE, TABLE_MODEL).keys() == {"age", "name"}
    assert given({"dataframe_records": [{"age": 1, "name": "a", "weight": None}]}, TABLE).keys() == {"age", "name"}


def test_more_rows_than_a_batch_are_several_requests() -> None:
    found = asked({"inputs": [[float(at), 0.0] for at in range(19)]})
    assert [batch[0].array.shape for batch in found.batches] == [(8, 2), (8, 2), (3, 2)]
    assert np.concatenate([batch[0].array for batch in found.batches])[:, 0].tolist() == list(range(19))
    with pytest.raises(InvalidArgument, match="5000 rows are more than 4096 batches of max_batch_size 1"):
        asked({"inputs": [[1.0]] * 5000}, described(("X", DataType.FP32, (-1, 1)), batch=1))


def test_models_without_batches() -> None:
    whole = described(("X", DataType.FP32, (2,)), batch=0)
    assert given({"inputs": [1, 2]}, whole) == {"X": [1.0, 2.0]}
    assert given({"instances": [[1, 2]]}, whole) == {"X": [1.0, 2.0]}
    halves = described(("X", DataType.FP16, (-1, 2)))
    assert given({"inputs": [[0.5, 2]]}, halves) == {"X": [[0.5, 2.0]]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "got an empty list"),
        ({}, "got none"),
        ({"inputs": ROWS, "instances": ROWS}, "exactly one"),
        ({"messages": []}, "got messages"),
        ({"inputs": None}, "got null"),
        ({"inputs": []}, "has no values"),
        ({"inputs": ROWS, "params": 3}, "params must be a dictionary, got a number"),
        ({"inputs": ROWS, "params": {"a": [1]}}, "parameter 'a' has invalid type"),
        ({"instances": [{"X": [1, 2]}, {"Y": [1, 2]}]}, "same members"),
        ({"dataframe_split": {"columns": ["a"], "data": ROWS}}, "row 0 has 2 values, there are 1 columns"),
        ({"dataframe_split": {"columns": ["a", "a"], "data": ROWS}}, "two columns have the same name"),
        ({"dataframe_split": {"columns": ["a"], "more": 1, "data": ROWS}}, "expected 'data'"),
        ({"dataframe_split": ROWS}, "got a list"),
        ({"dataframe_split": {"data": [1]}}, "rows, which are lists"),
        ({"dataframe_records": {"a": 1}}, "got a dictionary"),
        ({"inputs": [[1, 2], [3]]}, "shape"),
        ({"inputs": [["a", "b"]]}, "element 0"),
        ({"inputs": {"a": [1, 2], "b": [3]}}, "not the same"),
        ({"inputs": {"X": ROWS, "Z": ROWS}}, "unexpected input Z, the model has X"),
        (b"a,b\n1\n", "row 0 has 1 values"),
        (b"a,b\n1,x\n", "the cell 'x' is not of type FP32"),
        (b"a,b\n", "a line for each row"),
        (b"\xff\xfe\n1", "CSV in UTF-8"),
        (b'a\n"b', "to_csv"),
    ],
)
def test_what_is_wrong_is_said(body: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        asked(body)


def test_what_is_wrong_with_a_table() -> None:
    for body, words in (
        (b"age,name\nx,a\n", "input 'age': the cell 'x' is not of type INT64"),
        ({"inputs": {"age": [1.5], "name": ["a"]}}, "element 0"),
        ({"inputs": {"age": [1], "name": ["a"], "photo": ["?x"]}}, "input 'photo': expected base64"),
        ({"inputs": {"age": [1]}}, "missing the inputs name, got age"),
        ({"inputs": [[1, 2]]}, "name the columns age, name"),
        ({"inputs": {"else": [1]}}, "expected the columns age, name"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            asked(body, TABLE, TABLE_MODEL)


def deep(count: int) -> object:
    found: object = 1
    for _ in range(count):
        found = [found]
    return found


@pytest.mark.parametrize("body", [{"inputs": deep(300)}, {"inputs": [1, deep(900)]}])
def test_deep_values(body: object) -> None:
    with pytest.raises(InvalidArgument):
        asked(body, described(("X", DataType.INT32, (-1, 1))))


def predictions(outputs: dict[str, Any], model: MlflowModel, *, is_frame: bool = False, times: int = 1) -> Any:
    tensors: list[Tensor] = []
    for name, value in outputs.items():
        array: np.ndarray[Any, Any] = np.array(value)
        kind = {"f": DataType.FP64, "i": DataType.INT64, "b": DataType.BOOL}.get(array.dtype.kind, DataType.BYTES)
        tensors.append(Tensor(name, kind, array.astype(object) if kind is DataType.BYTES else array))
    responses = [InferenceResponse(model_name="m", model_version=1, outputs=tuple(tensors))] * times
    return json.loads(encode_predictions(responses, model, is_frame=is_frame))["predictions"]


def function(*fields: Field) -> MlflowModel:
    return MlflowModel(flavor="python_function", outputs=fields)


COLUMN = [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("outputs", "model", "is_frame", "expected"),
    [
        pytest.param({"y": COLUMN}, UNKNOWN, False, COLUMN, id="as it is"),
        pytest.param({"y": COLUMN, "z": [3, 4]}, UNKNOWN, False, [{"y": [1.0], "z": 3}, {"y": [2.0], "z": 4}], id="two outputs"),
        pytest.param({"y": COLUMN}, MlflowModel(flavor="sklearn"), False, [1.0, 2.0], id="an estimator"),
        pytest.param({"y": [[1.0, 2.0]]}, MlflowModel(flavor="sklearn"), False, [[1.0, 2.0]], id="probabilities"),
        pytest.param({"y": COLUMN}, MlflowModel(flavor="onnx"), False, {"y": COLUMN}, id="onnx"),
        pytest.param({"y": COLUMN}, MlflowModel(flavor="onnx"), True, [{"y": 1.0}, {"y": 2.0}], id="onnx of a frame"),
        pytest.param({"y": COLUMN}, MlflowModel(flavor="pytorch"), True, [{"0": 1.0}, {"0": 2.0}], id="pytorch of a frame"),
        pytest.param({"output": COLUMN}, function(Field(type="double")), True, [1.0, 2.0], id="a column without a name"),
        pytest.param({"output": COLUMN}, function(Field(type="float64", shape=(-1,))), False, [1.0, 2.0], id="one dimension"),
        pytest.param({"output": COLUMN}, function(Field(type="float64", shape=(-1, 1))), False, COLUMN, id="two dimensions"),
        pytest.param({"y": COLUMN}, function(Field(name="y", type="double")), True, [{"y": 1.0}, {"y": 2.0}], id="records"),
        pytest.param(
            {"y": COLUMN}, function(Field(name="y", type="float64", shape=(-1, 1))), False, {"y": COLUMN}, id="a dictionary"
        ),
        pytest.param(
            {"t": [[b"2026-01-02 03:04:05"], [b"2026-01-02T03:04:05.120000000"]], "b": [[b"\xff"], [b"a"]]},
            function(Field(name="t", type="datetime"), Field(name="b", type="binary")),
            True,
            [{"t": "2026-01-02T03:04:05", "b": "/w==\n"}, {"t": "2026-01-02T03:04:05.120000", "b": "YQ==\n"}],
            id="times and bytes",
        ),
    ],
)
def test_the_form_of_predictions(outputs: dict[str, Any], model: MlflowModel, is_frame: bool, expected: object) -> None:
    assert predictions(outputs, model, is_frame=is_frame) == expected


def test_batches_are_joined() -> None:
    assert predictions({"y": [1, 2]}, UNKNOWN, times=3) == [1, 2] * 3
    one, two = (
        InferenceResponse(model_name="m", model_version=1, outputs=(Tensor("y", DataType.INT32, np.zeros((1, size))),))
        for size in (2, 3)
    )
    with pytest.raises(InvalidArgument, match="differs between batches"):
        encode_predictions([one, two], UNKNOWN, is_frame=False)


def test_the_parameter_of_a_configuration() -> None:
    assert read_model("") is UNKNOWN
    text = '{"flavor": "onnx", "inputs": [{"type": "float32", "shape": [-1, 2]}]}'
    assert read_model(text) == MlflowModel(flavor="onnx", inputs=(Field(type="float32", shape=(-1, 2)),))
    for wrong in ("{", "[]", '{"inputs": [{"name": 3}]}'):
        with pytest.raises(Internal, match="parameter MLFLOW_MODEL"):
            read_model(wrong)


@pytest.mark.parametrize("form", ["dataframe_records", "inputs"])
def test_records_that_share_few_members_are_refused(form: str) -> None:
    """The table of all names for all records grows with the square of the body."""
    apart = [{f"a{at}": 1} for at in range(10**5)]
    with pytest.raises(InvalidArgument, match=rf"{form}: 100000 records with 100000 different members make a table of 10{{10}} "):
        read_json(json.dumps({form: apart}).encode())
    with pytest.raises(InvalidArgument, match="1600 records"):
        read_json(json.dumps({form: apart[:1600]}).encode())
    sparse = [{"a": 1, "b": 2} if at % 8 else {"a": 1, **{f"c{each}": 1 for each in range(20)}} for at in range(80)]
    found = read_json(json.dumps({form: sparse}).encode()).values
    assert isinstance(found, dict)
    assert (len(found), found["c3"][:2], {len(column) for column in found.values()}) == (22, [1, None], {80})


def test_lines_of_csv_end_as_anywhere() -> None:
    columns = read_csv('a,b\r\n1,"x\ny"\r2,z\n3,\u2028\n'.encode())
    assert columns.values == {"a": ["1", "2", "3"], "b": ["x\ny", "z", "\u2028"]}
