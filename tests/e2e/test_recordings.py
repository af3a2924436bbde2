"""Recordings of a real `tpy serve`: made by `tpy record`, sent again by `tpy replay`, to the same server and to another one."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.recording.reading import read_file

from .repositories import AFFINE_CONFIG, ModelFolder
from .sequence_models import config, summing
from .server import RunOutcome, ServerProcess, run_tpy

COUNTER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
            for value in range(count):
                text = pb_utils.Tensor("TEXT", np.array([str(value).encode()], object))
                sender.send(pb_utils.InferenceResponse([text]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNTER_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "N" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def build(repository: Path, scale: float = 2.0) -> None:
    ModelFolder(repository, "affine").config(AFFINE_CONFIG).affine(1, scale)
    state = '  state [ { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    sums = ModelFolder(repository, "sums").config(config("onnxruntime", "direct {}", state, instances=1, idle_ms=60_000))
    sums.file("1/model.onnx", summing())
    ModelFolder(repository, "counter").config(COUNTER_CONFIG).python(COUNTER)


def floats(kind: Any, name: str, *values: float) -> Any:
    tensor = kind.InferInput(name, [1, len(values)], "FP32")
    tensor.set_data_from_numpy(np.array([values], np.float32))
    return tensor


def ask(server: ServerProcess) -> None:
    """Twelve requests over three protocols, one of which is refused."""
    http, grpc = tritonclient.http.InferenceServerClient(server.http), tritonclient.grpc.InferenceServerClient(server.grpc)
    for value in range(4):
        http.infer("affine", [floats(tritonclient.http, "INPUT", value, 1, float("nan"))], request_id=str(value))
    grpc.infer("affine", [floats(tritonclient.grpc, "INPUT", 7, 8, 9)])
    with pytest.raises(Exception, match="unexpected shape"):
        http.infer("affine", [floats(tritonclient.http, "INPUT", 1)])
    answers: list[Any] = []
    grpc.start_stream(lambda result, error: answers.append(error or result))
    for step in range(3):  # two sequences, each of which adds up
        for correlation_id in (5, 6):
            grpc.async_stream_infer(
                "sums",
                [floats(tritonclient.grpc, "X", correlation_id)],
                sequence_id=correlation_id,
                sequence_start=step == 0,
                sequence_end=step == 2,
            )
    grpc.stop_stream()
    grpc.start_stream(lambda result, error: answers.append(error or result))
    count = tritonclient.grpc.InferInput("N", [1], "INT32")
    count.set_data_from_numpy(np.array([3], np.int32))
    grpc.async_stream_infer("counter", [count])
    grpc.stop_stream()
    assert len(answers) == 9
    grpc.close()
    http.close()


def tpy(*arguments: object) -> RunOutcome:
    return run_tpy(*map(str, arguments))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    build(repository)
    with ServerProcess(f"--recording-directory={folder}", "--frontend-processes=1", repositories=[repository]) as running:
        yield running


@pytest.fixture(scope="module")
def recording(server: ServerProcess, folder: Path) -> Path:
    """A recording of all that `ask` asks."""
    started = tpy("record", "*", "--url", server.http, "--detach")
    assert started.code == 0, started.err
    ask(server)
    stopped = tpy("record", "--stop", "--url", server.http)
    [file] = folder.iterdir()
    assert stopped.out.startswith(f"{file}: 13 requests, ")
    assert stopped.out.endswith("; stopped: it was stopped\n")
    protocols = Counter(each.protocol for each in read_file(file))
    assert protocols == {"http": 5, "grpc": 1, "grpc-stream": 7}
    return file


def test_the_same_server_answers_the_same(server: ServerProcess, recording: Path) -> None:
    over_grpc = tpy("replay", recording, "--url", server.grpc, "--protocol", "grpc-stream", "--speed", "max", "--json", "-")
    report = json.loads(over_grpc.out)
    assert over_grpc.code == 0, (over_grpc.out, over_grpc.err)
    assert (report["sent"], report["equal"], report["left_out"], report["problem"]) == (13, 13, {}, "")
    assert [(row["model"], row["sent"]) for row in report["models"]] == [("affine", 6), ("counter", 1), ("sums", 6)]

    over_http = tpy("replay", recording, "--url", server.http, "--speed", "10")
    assert over_http.code == 0, (over_http.out, over_http.err)
    assert "12 of 13 requests sent" in over_http.out
    assert "left out: 1 with more or less than one response, which --protocol grpc-stream takes" in over_http.out
    assert over_http.out.endswith("all 12 answers are equal\n")


def test_a_changed_model_differs(recording: Path, tmp_path: Path) -> None:
    build(tmp_path / "models", scale=2.001)
    with ServerProcess(repositories=[tmp_path / "models"]) as changed:
        found = tpy("replay", recording, "--url", changed.http, "--json", tmp_path / "report.json")
        assert found.code == 1
        assert "5 of 12 answers are different" in found.out
        report = json.loads((tmp_path / "report.json").read_text())
        first = report["differences"][0]
        assert (first["output"], first["what"], first["element"]) == ("OUTPUT", "element", [0, 1])
        assert first["recorded"] == "2.0"
        assert first["deviation"] == pytest.approx(0.001, rel=1e-3)
        tolerant = tpy("replay", recording, "--url", changed.http, "--tolerance", "OUTPUT=1e-2")
        assert tolerant.code == 0, tolerant.out


def test_ctrl_c_stops_a_recording(server: ServerProcess, recording: Path) -> None:
    command = [sys.executable, "-m", "tpy", "record", "affine", "--url", server.http]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().endswith("; recording\n")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.endswith("; stopped: it was stopped\n")
    shown = tpy("record", "--status", "--url", server.http)
    assert (shown.code, shown.out) == (0, out)
    file = Path(out.partition(": ")[0])
    assert file.parent == recording.parent
    file.unlink()


def test_nobody_there_and_files_that_are_none(recording: Path, tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = tpy("replay", recording, "--url", f"127.0.0.1:{nobody.getsockname()[1]}")
    assert gone.code == 2
    assert "ended early, 0 answered, 0 of them different: no server at" in gone.out
    cut = tmp_path / "cut.tpyrec"
    cut.write_bytes(b"PK")
    assert (
        tpy("replay", cut).err
        == f"tpy: error: {cut}: this is not a recording: it begins with b'PK' in place of b'TPYREC\\r\\n'\n"
    )
