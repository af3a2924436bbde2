"""`tpy serve PATH`: a model's folder, one with a model file, and a file are served, and said to be; `tpy dev` follows changes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess, run_tpy
from .waiting import wait_until

MODEL_PY = """import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [1]})
        return config
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", FORMULA)]) for request in requests for x in [
            pb_utils.get_input_tensor_by_name(request, "X").as_numpy()]]
"""


def ask(server: ServerProcess, path: str, document: object = None) -> tuple[int, str]:
    data = None if document is None else json.dumps(document).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{server.http}{path}", data), timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("given", ["", "affine", "affine/1", "affine/1/model.onnx", "renamed.onnx"])
def test_what_is_served(repository: Path, given: str) -> None:
    ModelFolder(repository, "affine").config(AFFINE_CONFIG).affine(1, 2)
    if given == "renamed.onnx":
        (repository / given).write_bytes((repository / "affine" / "1" / "model.onnx").read_bytes())
    name = "renamed" if given == "renamed.onnx" else "affine"
    with ServerProcess(str(repository / given)) as server:
        assert ask(server, f"/v2/models/{name}/ready")[0] == 200, server.log
        assert (" is taken for " in server.log) == bool(given)


def test_development(repository: Path) -> None:
    model = repository / "times" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text(MODEL_PY.replace("FORMULA", "x * 2"))

    def answer() -> str:
        return ask(server, "/v2/models/times/generate", {"X": 3.0})[1]

    with ServerProcess(str(repository / "times"), program=("-m", "tpy", "dev")) as server:
        server.wait_log(rf"models are loading; the page of the server: http://{server.http}/page/\n")
        server.wait_log(rf" info    the page of the server: http://{server.http}/page/\n\Z")  # the last line of the start
        assert json.loads(answer())["Y"] == 6.0
        with urllib.request.urlopen(urllib.request.Request(f"http://{server.http}/", headers={"Accept": "text/html"})) as found:
            assert found.url == f"http://{server.http}/page/"
        model.write_text(MODEL_PY.replace("FORMULA", "x * 5"))
        wait_until(lambda: '"Y":15.0' in answer(), within_s=10)
        model.write_text("this is no Python\n")
        server.wait_log(r"(?m)^\d\d:\d\d:\d\d ERROR .*SyntaxError")  # a readable log, and the old version serves on
        assert json.loads(answer())["Y"] == 15.0
        model.write_text(MODEL_PY.replace("FORMULA", "x.nosuch"))
        wait_until(lambda: "AttributeError" in answer(), within_s=10)
        assert f"model.py({MODEL_PY[: MODEL_PY.index('FORMULA')].count(chr(10)) + 1})" in answer()
        assert "        | Traceback (most recent call last):" in server.log


def test_a_joblib_file(tmp_path: Path) -> None:
    (tmp_path / "model.joblib").write_bytes(b"\x80")
    outcome = run_tpy("serve", str(tmp_path))
    assert outcome.code == 1
    assert outcome.err.startswith(f"tpy: error: {tmp_path}: model.joblib is a pickle, of scikit-learn perhaps")


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (
            "m/1/model.xgb",
            "found model.xgb: model.xgb is a model of XGBoost, which is not served as it is; tpy init NAME --from m/1/model.xgb",
        ),
        (
            "m/1/weights.onnx",
            r'rename weights.onnx, or write into m/config.pbtxt: backend: "onnxruntime" default_model_filename:',
        ),
        ("m/model.onnx", "a version folder, such as m/1, with a model file; found model.onnx; move model.onnx into m/1"),
        ("m/iris/1/model.onnx", "found iris/; if m is a repository itself: tpy serve m"),
    ],
)
def test_a_load_error_names_the_next_step(repository: Path, file: str, told: str) -> None:
    path = repository / file
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    with ServerProcess("--exit-on-error=false", repositories=[repository]) as server:
        [entry] = json.loads(ask(server, "/v2/repository/index", {})[1])
        assert entry["state"] == "UNAVAILABLE"
        assert told in entry["reason"]


def test_a_missing_onnx_file(repository: Path) -> None:
    ModelFolder(repository, "m").config(AFFINE_CONFIG)
    (repository / "m" / "1").mkdir()
    (repository / "m" / "1" / "net.onnx").write_bytes(b"x")
    with ServerProcess("--exit-on-error=false", repositories=[repository]) as server:
        [entry] = json.loads(ask(server, "/v2/repository/index", {})[1])
        assert 'the folder holds net.onnx; rename net.onnx, or set default_model_filename: "net.onnx"' in entry["reason"]
