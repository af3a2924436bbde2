"""Models that are loaded when they are asked for: over both protocols, by other models, with frontend processes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tpy.units import MIB

from .repositories import AFFINE_CONFIG, ModelFolder, parameter
from .server import ServerProcess, run_tpy
from .waiting import wait_until

CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for each in requests:
            given = pb_utils.get_input_tensor_by_name(each, "INPUT")
            call = pb_utils.InferenceRequest(model_name="b", requested_output_names=["OUTPUT"], inputs=[given])
            answer = call.exec()
            answers.append(pb_utils.InferenceResponse(answer.output_tensors(), error=answer.error()))
        return answers
"""

CHAIN = """
platform: "ensemble"
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_FP32 dims: 3 }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: 3 }
ensemble_scheduling {
  step { model_name: "a" model_version: -1 input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUTPUT" value: "X" } }
  step { model_name: "b" model_version: -1 input_map { key: "INPUT" value: "X" } output_map { key: "OUTPUT" value: "OUTPUT" } }
}
"""


def write(repository: Path) -> None:
    """`a` and `b` are 20 MiB each by their files, `large` is 60; `chain` is a, then b; `caller` calls b."""
    for name, size in (("a", 20), ("b", 20), ("large", 60)):
        folder = ModelFolder(repository, name).config(AFFINE_CONFIG).affine(1, 2.0, 1.0 if name == "a" else 0.0)
        with open(folder.path / "1" / "weights.bin", "wb") as file:
            file.truncate(size * MIB)
    ModelFolder(repository, "chain").config(CHAIN).path.joinpath("1").mkdir()
    ModelFolder(repository, "caller").config(AFFINE_CONFIG.replace("onnxruntime", "python")).python(CALLER)


def infer(server: ServerProcess, name: str) -> list[list[float]]:
    """The answers over HTTP and gRPC."""
    found = []
    with triton_http.InferenceServerClient(server.http) as http, triton_grpc.InferenceServerClient(server.grpc) as grpc:
        for kind, client in ((triton_http, http), (triton_grpc, grpc)):
            given = kind.InferInput("INPUT", [1, 3], "FP32")
            given.set_data_from_numpy(np.array([[1, 2, 3]], np.float32))
            found.append(client.infer(name, [given]).as_numpy("OUTPUT")[0].tolist())
    return found


def refusal(server: ServerProcess, name: str) -> tuple[int, str, str | None]:
    """Status, text and Retry-After of a request over HTTP."""
    body = {"inputs": [{"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{server.http}/v2/models/{name}/infer", json.dumps(body).encode())
    error = refused.value
    return error.code, json.load(error)["error"], error.headers["Retry-After"]


def index(server: ServerProcess) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{server.http}/v2/repository/index", b"") as answer:
        return {entry["name"]: (entry["state"], entry.get("reason", "")) for entry in json.load(answer)}


@pytest.mark.parametrize("processes", [0, 1])
def test_models_come_and_go(tmp_path: Path, processes: int) -> None:
    write(tmp_path / "models")
    flags = ("--model-control-mode=on-demand", "--model-memory-budget=50MiB", f"--frontend-processes={processes}")
    with ServerProcess(*flags, repositories=[tmp_path / "models"]) as server:
        not_loaded = ("READY", "it is not loaded: a request loads it")
        assert index(server) == {"chain": ("READY", ""), **dict.fromkeys(("a", "b", "large", "caller"), not_loaded)}
        assert infer(server, "a") == [[3, 5, 7]] * 2
        assert (index(server)["a"], index(server)["b"]) == (("READY", ""), not_loaded)
        assert infer(server, "chain") == [[6, 10, 14]] * 2
        assert infer(server, "caller") == [[2, 4, 6]] * 2, "a call loads what it calls, beside the caller"
        code, text, later = refusal(server, "large")
        assert (code, bool(later)) == (503, True)
        assert text.startswith("model 'large:1' needs 60.0 MiB, --model-memory-budget is 50.0 MiB")
        with triton_grpc.InferenceServerClient(server.grpc) as client:
            given = triton_grpc.InferInput("INPUT", [1, 3], "FP32")
            given.set_data_from_numpy(np.zeros((1, 3), np.float32))
            with pytest.raises(triton_grpc.InferenceServerException, match=r"needs 60\.0 MiB") as refused:
                client.infer("large", [given])
        assert refused.value.status() == "StatusCode.UNAVAILABLE"


def test_a_call_that_can_never_be_answered_is_refused_in_time(tmp_path: Path) -> None:
    """The caller keeps its memory while it waits for a model that does not fit beside it."""
    write(tmp_path / "models")
    with open(tmp_path / "models/caller/1/weights.bin", "wb") as file:
        file.truncate(40 * MIB)
    flags = ("--model-control-mode=on-demand", "--model-memory-budget=50MiB", "--model-load-wait-secs=1")
    with ServerProcess(*flags, repositories=[tmp_path / "models"]) as server:

        def error_of_the_call() -> tuple[int, str] | None:
            code, text, _ = refusal(server, "caller")
            return None if "'caller:1' was not loaded" in text else (code, text)  # on a machine that is busy

        code, text = wait_until(error_of_the_call)
        assert code == 503, "the error of the call is passed on"
        assert "model 'b:1' was not loaded within 1 s: it is unloaded" in text
        assert infer(server, "b") == [[2, 4, 6]] * 2, "and its room is there when the caller has ended"


def test_parameters_that_say_nothing_are_told_before(tmp_path: Path) -> None:
    ModelFolder(tmp_path, "m").config(AFFINE_CONFIG + parameter("load", "lazily")).affine(1, 1.0)
    checked = run_tpy("check", str(tmp_path))
    assert checked.code == 0, "they may be the model's own"
    assert "unexpected value 'lazily' of parameter load for m: it says nothing to --model-memory-budget" in checked.out
    assert "at_start, warm, on_demand" in checked.out
