"""The data that `tpy perf` sends: files in perf_analyzer's format, folders of images and of texts, expected answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from .perf_runs import refused, results_of, run_perf
from .server import ServerProcess
from .test_perf import IDENTITY, write

TEXTS = """backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
"""

PICTURES = """backend: "identity"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_KIND dims: [ DIMS ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_KIND dims: [ DIMS ] } ]
"""

PAIR = """backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2, 3 ] }, { name: "INPUT1" data_type: TYPE_STRING dims: [ 2 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2, 3 ] }, { name: "OUTPUT1" data_type: TYPE_STRING dims: [ 2 ] } ]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    write(repository, "same", IDENTITY)
    write(repository, "texts", TEXTS)
    write(repository, "scaled", PICTURES.replace("KIND", "FP32").replace("DIMS", "3, 4, 6"))
    write(repository, "whole", PICTURES.replace("KIND", "UINT8").replace("DIMS", "-1, -1, 3"))
    write(repository, "pair", PAIR)
    with ServerProcess(repositories=[repository]) as running:
        yield running


Measured = Callable[..., dict[str, Any]]


@pytest.fixture
def measured(server: ServerProcess) -> Measured:
    """Runs, and gives the result."""

    def measure(*arguments: str, grpc: bool = False, code: int = 0) -> dict[str, Any]:
        url = ("-u", server.grpc, "-i", "grpc") if grpc else ("-u", server.http)
        (result,) = results_of(*url, *arguments, code=code)
        return result

    return measure


def sent(server: ServerProcess, file: Path, *arguments: str) -> list[dict[str, Any]]:
    """The inputs of the requests of a run, and that they came back, as the profile has them."""
    outcome = run_perf("-u", server.http, *arguments, "--request-count", "4", "--profile-export-file", str(file))
    assert outcome.code == 0, outcome.err
    requests = json.loads(file.read_text())["experiments"][0]["requests"]
    for request in requests:
        (output,) = request["response_outputs"]
        assert list(output.values()) == list(request["request_inputs"].values())
    return [request["request_inputs"] for request in requests]


def test_answers_are_compared_with_those_expected(measured: Measured, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    entries = [{"INPUT0": [1, 2, 3, 4]}, {"INPUT0": {"content": [5, 6, 7, 8], "shape": [4]}}]
    data.write_text(json.dumps({"data": entries, "validation_data": [{"OUTPUT0": [1, 2, 3, 4]}, {"OUTPUT0": [5, 6, 7, 8]}]}))
    for grpc in (False, True):
        right = measured("-m", "same", "--input-data", str(data), "--request-count", "20", grpc=grpc)
        assert (right["requests"], right["errors"]) == (20, {})
    data.write_text(json.dumps({"data": entries, "validation_data": [{"OUTPUT0": [1, 2, 3, 4]}, {"OUTPUT0": [5, 6, 7, 9]}]}))
    wrong = measured("-m", "same", "--input-data", str(data), "--request-count", "20", code=3)
    assert wrong["requests"] == 10
    assert wrong["errors"] == {"wrong answer to entry 1: output OUTPUT0 has 8 at 3, expected 9": 10}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"INPUT0": [1, 2, 3]}, "data[1].INPUT0: expected 4 elements for the shape [4], got 3"),
        ({"INPUT0": {"content": [1, 2], "shape": [2]}}, "data[1].INPUT0: expected the shape [4], got [2]"),
        ({"INPUT0": ["a", "b", "c", "d"]}, "data[1].INPUT0: expected numbers for FP32, got 'a'"),
        ({"Z": [1]}, "data[1]: there is no tensor 'Z'; the model has INPUT0"),
        ({}, "data[1]: no data for INPUT0"),
        (7, "data[1]: expected an object of names and values, got int"),
    ],
)
def test_an_entry_that_does_not_fit_is_named(server: ServerProcess, tmp_path: Path, entry: object, said: str) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"INPUT0": [1, 2, 3, 4]}, entry]}))
    assert said in refused("-m", "same", "-u", server.http, "--input-data", str(data))


def test_open_sizes_have_to_be_said(measured: Measured, server: ServerProcess, tmp_path: Path) -> None:
    said = refused("-m", "texts", "-u", server.http)
    assert "input INPUT0 has the shape [-1]: say which sizes to send with --shape INPUT0:N" in said
    result = measured("-m", "texts", "--shape", "INPUT0:3", "--string-length", "9", "--request-count", "10")
    assert result["requests"] == 10
    folder = tmp_path / "samples"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(name)
    assert measured("-m", "texts", "--input-data", str(folder), "--request-count", "10")["requests"] == 10


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with a red PNG and a blue JPEG, which are larger than the model takes, and a hidden file."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    Image.new("RGB", (12, 8), (255, 0, 0)).save(folder / "a.png")
    Image.new("RGB", (12, 8), (0, 0, 255)).save(folder / "b.jpg", quality=100)
    (folder / ".hidden").write_text("not sent")
    return folder


def test_a_folder_of_images_is_scaled_to_what_the_model_takes(server: ServerProcess, pictures: Path, tmp_path: Path) -> None:
    red, blue, again, _ = sent(server, tmp_path / "p.json", "-m", "scaled", "--input-data", str(pictures))
    assert red == again
    assert np.array(red["INPUT0"]).reshape(3, 4, 6)[0].min() == 1.0
    assert np.array(red["INPUT0"]).reshape(3, 4, 6)[1:].max() == 0.0
    assert np.array(blue["INPUT0"]).reshape(3, 24).mean(axis=1) == pytest.approx([0, 0, 1], abs=0.02)


def test_images_for_open_sizes_keep_theirs_and_fill_a_batch(server: ServerProcess, pictures: Path, tmp_path: Path) -> None:
    first, *_ = sent(server, tmp_path / "p.json", "-m", "whole", "--input-data", str(pictures), "-b", "2")
    assert np.array(first["INPUT0"]).reshape(2, 8, 12, 3)[:, 3, 5].tolist() == [[255, 0, 0]] * 2
    arguments = ("-m", "whole", "--input-data", str(pictures), "--shape", "INPUT0:2,5,3")
    small, *_ = sent(server, tmp_path / "p.json", *arguments)
    assert len(small["INPUT0"]) == 2 * 5 * 3


def test_a_folder_of_texts(server: ServerProcess, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("b.txt", "a.txt"):
        (folder / name).write_text(f"all of {name}\nand more")
    found = sent(server, tmp_path / "p.json", "-m", "texts", "--input-data", str(folder))
    assert [each["INPUT0"] for each in found] == ["all of a.txt\nand more", "all of b.txt\nand more"] * 2


def test_a_folder_with_a_file_for_each_input(server: ServerProcess, tmp_path: Path) -> None:
    """perf_analyzer's form: raw numbers, and texts line by line."""
    folder = tmp_path / "inputs"
    folder.mkdir()
    (folder / "INPUT0").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    (folder / "INPUT1").write_text("one\ntwo\n")
    for flag in ("--input-data", "--data-directory"):
        first, *_ = sent(server, tmp_path / "p.json", "-m", "pair", flag, str(folder))
        assert first == {"INPUT0": [0, 1, 2, 3, 4, 5], "INPUT1": ["one", "two"]}


@pytest.mark.parametrize(
    ("model", "files", "said"),
    [
        ("pair", {"INPUT0": b"1234567", "INPUT1": b"a\nb"}, "INPUT0: expected a multiple of 4 bytes for FP32, got 7"),
        ("pair", {"INPUT0": b"1234" * 6, "INPUT1": b"a"}, "INPUT1: expected 2 elements for the shape [2], got 1"),
        ("pair", {"OTHER": b""}, "expected a file for each of the inputs: INPUT0, INPUT1"),
        ("pair", {"INPUT0": b"1234" * 6, "INPUT1": b"\xff"}, "INPUT1: expected texts in UTF-8: "),
        ("scaled", {}, "there are no files"),
        ("scaled", {"x.png": b"no picture"}, "x.png: not a picture: "),
        ("texts", {"data.json": b"{"}, ""),
    ],
)
def test_a_folder_that_does_not_fit(
    server: ServerProcess, tmp_path: Path, model: str, files: dict[str, bytes], said: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if not said:
        assert results_of("-u", server.http, "-m", model, "--input-data", str(folder), "--request-count", "2")[0]["requests"] == 2
        return
    assert said in refused("-u", server.http, "-m", model, "--input-data", str(folder))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", "not JSON: "),
        ("[]", 'expected an object with a list "data" that is not empty'),
        ('{"data": []}', 'expected an object with a list "data" that is not empty'),
        ('{"data": [[]]}', "data[0]: expected a list of entries that is not empty"),
        (
            '{"data": [{"INPUT0": [1, 2, 3, 4]}], "validation_data": []}',
            'expected 1 entries in "validation_data", as in "data", got 0',
        ),
        (
            '{"data": [{"INPUT0": [1, 2, 3, 4]}], "validation_data": [{"OUTPUT0": [1]}]}',
            "validation_data[0].OUTPUT0: expected 4 elements for the shape [4], got 1",
        ),
        ('{"data": [{"INPUT0": {"b64": "AAA"}}]}', "data[0].INPUT0: not base64: "),
        ('{"data": [{"INPUT0": {"b64": "AAAA"}}]}', "data[0].INPUT0: expected a multiple of 4 bytes for FP32, got 3"),
        ('{"data": [{"INPUT0": {"content": [1, 2, 3, 4], "shape": "x"}}]}', "data[0].INPUT0: expected a list of sizes as shape"),
    ],
)
def test_a_file_that_does_not_fit(server: ServerProcess, tmp_path: Path, document: str, said: str) -> None:
    data = tmp_path / "data.json"
    data.write_text(document)
    answer = refused("-u", server.http, "-m", "same", "--input-data", str(data))
    assert said in answer
    assert str(data) in answer


def test_the_request_of_tpy_init_is_sent(measured: Measured, server: ServerProcess, tmp_path: Path) -> None:
    """A request as /v2/models/NAME/infer takes it: each of its rows is one request."""
    data = tmp_path / "request.json"
    rows = {"name": "INPUT0", "datatype": "FP32", "shape": [2, 4], "data": [1, 2, 3, 4, 5, 6, 7, 8]}
    data.write_text(json.dumps({"inputs": [rows]}))
    inputs = sent(server, tmp_path / "profile.json", "-m", "same", "--input-data", str(data))
    assert sorted(map(str, inputs))[0] != sorted(map(str, inputs))[-1], "both rows"
    assert measured("-m", "same", "--input-data", str(data), "--request-count", "4", "-b", "2", grpc=True)["requests"] == 4
    rows["shape"] = [3, 4]
    data.write_text(json.dumps({"inputs": [rows]}))
    assert "input INPUT0: cannot reshape array of size 8 into shape (3,4)" in refused(
        "-m", "same", "-u", server.http, "--input-data", str(data)
    )
    data.write_text(json.dumps({"inputs": [{"name": "INPUT0"}]}))
    assert "expected inputs with name, datatype, shape and data" in refused(
        "-m", "same", "-u", server.http, "--input-data", str(data)
    )


def test_a_model_that_refuses_all_ends_the_run_at_the_first_window(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write(repository, "strict", IDENTITY.replace('backend: "identity"', 'backend: "python"'))
    (repository / "strict" / "1" / "model.py").write_text(
        "import triton_python_backend_utils as pb\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        return [pb.InferenceResponse(error=pb.TritonError('not my data')) for _ in requests]\n"
    )
    with ServerProcess(repositories=[repository]) as running:
        outcome = run_perf("-m", "strict", "-u", running.http, "-p", "200", "--concurrency", "1:2")
        report = run_perf("-m", "strict", "-u", running.http, "--request-count", "2", "--json", "-")
    assert outcome.code == 3
    assert "window 2" not in outcome.err
    assert outcome.err.splitlines()[-1].startswith("no request was answered without an error: ")
    assert "not my data" in outcome.err
    assert "concurrency 2" not in outcome.err.lower()
    assert json.loads(report.out)["results"][0]["requests"] == 0, "alone on standard output"
