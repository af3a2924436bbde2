"""Models that are loaded when they are asked for: over both protocols, by other models, with frontend processes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

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


def post(server: ServerProcess, name: str) -> Any:
    """The answer over HTTP."""
    body = {"inputs": [{"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
    with urllib.request.urlopen(f"http://{server.http}/v2/models/{name}/infer", json.dumps(body).encode()) as answer:
        return json.load(answer)


def refusal(server: ServerProcess, name: str) -> tuple[int, str, str | None]:
    """Status, text and Retry-After of a request over HTTP."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(server, name)
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


ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(each, "INPUT").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", each)]) for each in given]
"""


def test_workers_on_a_gpu_make_room_there(tmp_path: Path) -> None:
    """Each worker has 3 GiB of the fake GPU 0, as NVML tells, whatever the configuration says of GPUs."""
    config = AFFINE_CONFIG.replace("onnxruntime", "python")
    for name, count in (("a", 1), ("b", 1), ("two", 2)):
        ModelFolder(tmp_path, name).config(f"{config} instance_group {{ kind: KIND_CPU count: {count} }}").python(ECHO)
    flags = ("--model-control-mode=on-demand", "--model-memory-budget=10GiB", "--model-gpu-memory-budget=0:5GiB")
    with ServerProcess(*flags, repositories=[tmp_path], program=("-m", "tests.page.server_with_gpus", "serve")) as server:
        for name in ("a", "b", "two"):
            assert post(server, name)["outputs"][0]["data"] == [1, 2, 3]
        wait_until(lambda: "unloading 'two:1', the budget is exceeded" in server.log)
        code, text, later = refusal(server, "two")
        assert (code, text, bool(later)) == (
            503,
            "model 'two:1' needs 6144.0 MiB, --model-gpu-memory-budget of GPU 0 is 5120.0 MiB",
            True,
        )
        with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
            lines = page.read().decode().splitlines()
    assert 'tpy_memory_budget_gpu_bytes{gpu="0",gpu_uuid="GPU-aaaa"} 5368709120' in lines
    assert 'tpy_memory_budget_unloads_total{reason="over"} 3' in lines, "no other was loaded beside one of them"


FRAGILE = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], "..", "..")
        with open(os.path.join(folder, "loads"), "a") as file:
            file.write("x")
        if os.path.exists(os.path.join(folder, "fails")):
            raise RuntimeError("no weights")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.zeros((1, 3), np.float32))]) for _ in requests]
"""


class Fragile(NamedTuple):
    """A server with a model that cannot be loaded while the file `fails` is there, and one that displaces it."""

    server: ServerProcess
    folder: Path
    model: ModelFolder

    def breaks(self, whether: bool) -> None:
        (self.folder / "fails").touch() if whether else (self.folder / "fails").unlink()

    def loads(self) -> int:
        return len((self.folder / "loads").read_text())

    def ask(self) -> tuple[int, str, str | None]:
        """Status, text, and Retry-After of a request."""
        try:
            return 200, str(infer_once(self.server, "fragile")), None
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"], error.headers["Retry-After"]

    def ask_at_once(self, count: int) -> set[tuple[int, str, str | None]]:
        """The different answers to `count` requests that come together."""
        with ThreadPoolExecutor(count) as threads:
            return {each.result(60) for each in [threads.submit(self.ask) for _ in range(count)]}

    def load(self) -> None:
        with triton_http.InferenceServerClient(self.server.http) as client:
            client.load_model("fragile")


def infer_once(server: ServerProcess, name: str) -> Any:
    body = {"inputs": [{"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
    with urllib.request.urlopen(f"http://{server.http}/v2/models/{name}/infer", json.dumps(body).encode()) as answer:
        return json.load(answer)["outputs"][0]["data"]


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Fragile]:
    repository = tmp_path / "models"
    config = AFFINE_CONFIG + parameter("load", "on_demand")
    model = ModelFolder(repository, "fragile").config(config.replace("onnxruntime", "python")).file("1/model.py", FRAGILE)
    other = ModelFolder(repository, "other").config(config).affine(1, 1.0)
    for folder in (model, other):
        with open(folder.path / "1" / "weights.bin", "wb") as file:
            file.truncate(30 * MIB)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--model-memory-budget=55MiB")
    with ServerProcess(*flags, repositories=[repository]) as server:
        yield Fragile(server, tmp_path, model)


NOT_LOADED = ("READY", "it is not loaded: a request loads it")


def test_a_first_load_that_fails_is_not_tried_again_by_requests(fragile: Fragile) -> None:
    fragile.breaks(True)
    answers = {code: (text, later) for code, text, later in fragile.ask_at_once(8)}
    assert fragile.loads() == 1, "all wait for one load, or come after it"
    text, later = answers[503]
    assert text.startswith("failed to load model 'fragile': RuntimeError: no weights")
    assert later is None, "to come again makes no sense"
    code, text, _ = fragile.ask()
    assert code == 404
    assert text.endswith("'fragile' has no available versions; the reason: Internal: RuntimeError: no weights")
    state, reason = index(fragile.server)["fragile"]
    assert state == "UNAVAILABLE"
    assert reason.startswith("Internal: RuntimeError: no weights")
    fragile.breaks(False)
    fragile.load()
    assert index(fragile.server)["fragile"] == NOT_LOADED
    assert fragile.ask()[0] == 200
    assert fragile.loads() == 2

    # An update that fails is known with its first request.
    fragile.model.file("1/model.py", f"{FRAGILE}\n# new")
    fragile.breaks(True)
    fragile.load()
    assert index(fragile.server)["fragile"] == NOT_LOADED
    assert {answer[0] for answer in fragile.ask_at_once(8)} <= {503, 404}
    assert fragile.loads() == 3, "the others wait for that load, or come after it"
    assert index(fragile.server)["fragile"][0] == "UNAVAILABLE"
    fragile.breaks(False)
    fragile.load()
    assert fragile.ask()[0] == 200


def test_a_later_load_that_fails_is_tried_again_after_a_pause(fragile: Fragile) -> None:
    assert fragile.ask()[0] == 200
    infer_once(fragile.server, "other")
    wait_until(lambda: index(fragile.server)["fragile"] == NOT_LOADED)
    fragile.breaks(True)
    for _ in range(2):
        for code, text, later in fragile.ask_at_once(8):
            assert (code, later in ("1", "2", "4")) == (503, True)
            assert text.startswith("failed to load model 'fragile': RuntimeError: no weights")
    seen = fragile.loads()
    assert seen in (2, 3, 4), "requests of the pause do not load it: another round may come after it"
    assert index(fragile.server)["fragile"] == ("READY", "it is not loaded, its last load failed: a request tries again")
    fragile.breaks(False)
    wait_until(lambda: fragile.ask()[0] == 200, within_s=30)
    assert fragile.loads() > seen


def test_parameters_that_say_nothing_are_told_before(tmp_path: Path) -> None:
    ModelFolder(tmp_path, "m").config(AFFINE_CONFIG + parameter("load", "lazily")).affine(1, 1.0)
    checked = run_tpy("check", str(tmp_path))
    assert checked.code == 0, "they may be the model's own"
    assert "unexpected value 'lazily' of parameter load for m: it says nothing to --model-memory-budget" in checked.out
    assert "at_start, warm, on_demand" in checked.out
