"""Predictions for tables, as a worker of Ray Data makes them, and for a data set in a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tpy.errors import InvalidArgument
from tpy.ray import predict

from .repository import build
from .serving import environment

pa = pytest.importorskip("pyarrow")

_DATASET = """
import json, sys, numpy as np, ray, tpy.ray
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
rows = [{"INPUT0": [n] * 16, "b": [1] * 16} for n in range(1000)]
data = tpy.ray.predict(ray.data.from_items(rows), repository=sys.argv[1], model="simple", columns={"INPUT1": "b"}, batch_size=100)
found = data.take_all()
print(json.dumps({"rows": len(found), "wrong": sum(list(row["OUTPUT0"]) != [row["INPUT0"][0] + 1] * 16 for row in found)}))
"""

_STRICT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if (x < 0).any():
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("below zero")))
            else:
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * x)]))
        return answers
"""

_STRICT_CONFIG = """
name: "strict"
backend: "python"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    (repository / "strict" / "1").mkdir(parents=True)
    (repository / "strict" / "1" / "model.py").write_text(_STRICT)
    (repository / "strict" / "config.pbtxt").write_text(_STRICT_CONFIG)
    return repository


def predicted(repository: Path, on_error: str) -> object:
    from tpy.ray.offline import Predictor

    table = pa.table({"X": pa.array([1, 2, -3, 4, 5, 6], pa.float32()), "id": list("abcdef")})
    return pa.concat_tables(Predictor(str(repository), "strict", {}, on_error, {})(table)).to_pydict()


def test_rows_that_the_model_refuses_are_dropped_or_told(strict: Path) -> None:
    assert predicted(strict, "drop") == {"X": [1, 2, 4, 5, 6], "id": ["a", "b", "d", "e", "f"], "Y": [2, 4, 8, 10, 12]}
    told = predicted(strict, "column")
    assert isinstance(told, dict)
    assert told["Y"] == [2, 4, None, 8, 10, 12]
    assert told["error"] == [None, None, "below zero", None, None, None]
    with pytest.raises(Exception, match="below zero"):
        predicted(strict, "fail")


_WHERE = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PID", np.array([[os.getpid()]]))]) for _ in requests]
"""

_WHERE_CONFIG = """
backend: "python"
max_batch_size: 1
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "PID" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""


@pytest.mark.parametrize(
    ("code", "config", "flags", "is_own"),
    [
        (_WHERE, "", {}, True),
        (_WHERE, "", {"backend_config": "python,isolation=process"}, False),
        (_WHERE, 'parameters { key: "isolation" value { string_value: "process" } }', {}, False),
        (_WHERE, "instance_group { count: 2 kind: KIND_CPU }", {}, False),
        (_WHERE.replace("def execute", "async def execute"), "", {}, False),
    ],
)
def test_a_python_model_runs_in_the_worker_where_it_can(
    tmp_path: Path, code: str, config: str, flags: dict[str, str], is_own: bool
) -> None:
    from tpy.ray.offline import started

    (tmp_path / "where" / "1").mkdir(parents=True)
    (tmp_path / "where" / "1" / "model.py").write_text(code)
    (tmp_path / "where" / "config.pbtxt").write_text(_WHERE_CONFIG + config)
    server = started(str(tmp_path), "where", flags)
    try:
        [[pid]] = server.model("where").infer({"X": np.ones((1, 1), np.float32)})["PID"].tolist()
    finally:
        server.stop()
    assert (pid == os.getpid()) is is_own


def test_columns_of_numbers_are_tensors_without_a_copy() -> None:
    from tpy.ray.offline import array_of

    numbers = np.arange(12, dtype=np.float32)
    column = pa.chunked_array([pa.FixedSizeListArray.from_arrays(pa.array(numbers), 3)])
    found = array_of(column, "c")
    assert found.shape == (4, 3)
    assert np.shares_memory(found, numbers)
    assert array_of(pa.array([[1, 2], [3, 4]]), "c").tolist() == [[1, 2], [3, 4]]
    assert array_of(pa.array(["a", "ä"]), "c").tolist() == [b"a", "ä".encode()]


@pytest.mark.parametrize(
    ("values", "dims", "dtype", "kind", "column"),
    [
        ([[1.5], [2]], [1], np.float32, "float", [1.5, 2]),
        (None, [1], np.int64, "int64", [None, None]),
        ([[True, False]], [2], np.bool_, "fixed_size_list<item: bool>[2]", [[True, False]]),
        (None, [2], np.bool_, "fixed_size_list<item: bool>[2]", [None, None]),
        ([[1], [2]], [-1], np.int32, "list<item: int32>", [[1], [2]]),
        ([[[1, 2], [3, 4]]], [-1, 2], np.int32, "list<item: list<item: int32>>", [[[1, 2], [3, 4]]]),
        (np.zeros((2, 0)), [-1], np.int32, "list<item: int32>", [[], []]),
        (None, [-1], np.int32, "list<item: int32>", [None, None]),
        ([[b"a", b"b"]], [2], np.object_, "list<item: binary>", [[b"a", b"b"]]),
        ([[b"a"], [b"b"]], [1], np.object_, "binary", [b"a", b"b"]),
    ],
)
def test_outputs_are_columns_of_their_type(
    values: list[object] | None, dims: list[int], dtype: type[np.generic], kind: str, column: list[object]
) -> None:
    from tpy.ray.offline import column_of

    found = column_of(None if values is None else np.array(values, dtype), len(column), dims, np.dtype(dtype))
    assert str(found.type) == kind
    assert found.to_pylist() == column


@pytest.mark.filterwarnings("ignore")  # of Ray, for settings of its own
def test_outputs_of_several_dimensions_are_rays_tensors() -> None:
    from tpy.ray.offline import array_of, column_of

    ones, none = (column_of(each, 1, [2, 3], np.dtype(np.float32)) for each in (np.ones((1, 2, 3), np.float32), None))
    column = pa.chunked_array([ones, none])
    assert array_of(column, "c").tolist() == [[[1.0] * 3] * 2, [[0.0] * 3] * 2]
    assert array_of(pa.table({"c": column}).filter(pa.array([False, True])).column("c"), "c").shape == (1, 2, 3)


def test_numbers_of_outputs_are_not_copied() -> None:
    from tpy.ray.offline import array_of, column_of

    values = np.arange(12, dtype=np.float32).reshape(2, 6)
    for dims in ([6], [2, 3], [-1]):
        assert np.shares_memory(
            array_of(column_of(values.reshape(2, *np.reshape(values[0], dims).shape), 2, dims, values.dtype), "c"), values
        )


@pytest.mark.parametrize(
    ("column", "text"), [([1, None], "1 of 2 values are null"), ([[1], [1, 2]], "its lists have 1 to 2 elements")]
)
def test_columns_that_are_no_tensors_are_named(column: list[object], text: str) -> None:
    from tpy.ray.offline import array_of

    with pytest.raises(InvalidArgument, match=f"column 'c': {text}"):
        array_of(pa.array(column), "c")


def test_numbers_are_cast_to_the_models_type_where_it_has_them() -> None:
    from tpy.ray.offline import fitted

    assert fitted(np.array([1, 2]), np.dtype(np.int32), "c").dtype == np.int32
    with pytest.raises(InvalidArgument, match="column 'c': not all of its values of type int64 are int8"):
        fitted(np.array([1, 300]), np.dtype(np.int8), "c")


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InvalidArgument, match="expected on_error to be one of fail, drop, column, got 'ignore'"):
        predict(None, repository="r", model="m", on_error="ignore")


def test_a_data_set_in_a_cluster(tmp_path: Path) -> None:
    repository = build(tmp_path / "models")
    ended = subprocess.run(
        [sys.executable, "-c", _DATASET, repository],
        capture_output=True,
        text=True,
        check=False,
        env=environment(tmp_path / "home"),
    )
    assert not ended.returncode, ended.stderr[-3000:]
    assert json.loads(ended.stdout.splitlines()[-1]) == {"rows": 1000, "wrong": 0}
