"""`tpy perf` and `tpy replay` against NVIDIA's Triton, where it is installed ($TPY_PEERS, see benchmarks/servers/peers.py)."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.servers.peers import find_peers
from benchmarks.servers.plans import TritonPlan
from benchmarks.servers.process import HOST, Server, running

from .perf_runs import results_of
from .server import ServerProcess, run_tpy
from .waiting import wait_until

DOUBLE = """import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", 2 * tensor)]) for tensor in tensors]
"""
DOUBLE_CONFIG = """backend: "python"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""

SUM = """import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
    def execute(self, requests):
        answers = []
        for request in requests:
            start, number, value = (int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().flat[0]) for name in NAMES)
            self.sums[number] = value if start else self.sums[number] + value
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([[self.sums[number]]], np.int32))]))
        return answers
NAMES = ("START", "NUMBER", "IN")
"""
SUM_CONFIG = """backend: "python"
max_batch_size: 1
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 16 }
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "NUMBER" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
"""

COUNTER = """import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for at in range(int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("AT", np.array([at], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNTER_CONFIG = """backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "AT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    models = {"double": (DOUBLE_CONFIG, DOUBLE), "sum": (SUM_CONFIG, SUM), "counter": (COUNTER_CONFIG, COUNTER)}
    for name, (config, code) in models.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
        (folder / name / "1" / "model.py").write_text(code)
    return folder


@pytest.fixture(scope="module")
def triton(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = find_peers().triton
    if found is None:
        pytest.skip("NVIDIA's Triton is not installed")
    with running(TritonPlan(triton=found, repository=repository), tmp_path_factory.mktemp("log") / "triton.log") as server:
        yield server


def data_for(folder: Path) -> str:
    """Five responses, of which the last is compared."""
    file = folder / "counts.json"
    file.write_text('{"data": [{"COUNT": [5]}], "validation_data": [{"AT": [4]}]}')
    return str(file)


@pytest.fixture(scope="module")
def recording(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Requests over all protocols, and the answers of tpy."""
    folder = tmp_path_factory.mktemp("recording")
    data = data_for(tmp_path_factory.mktemp("data"))
    with ServerProcess(f"--recording-directory={folder}", repositories=[repository]) as server:
        assert run_tpy("record", "*", "--url", server.http, "--detach").code == 0
        grpc = ("-i", "grpc", "-u", server.grpc)
        results_of("-m", "double", "-u", server.http, "--request-count", "20", "--concurrency", "3")
        results_of("-m", "double", *grpc, "--request-count", "20", "-b", "2")
        results_of("-m", "sum", *grpc, "--streaming", "--request-count", "30", "--concurrency", "2", "--sequence-length", "5")
        results_of("-m", "counter", *grpc, "--streaming", "--request-count", "10", "--input-data", data)
        assert ": 80 requests" in run_tpy("record", "--stop", "--url", server.http).out
    [file] = folder.iterdir()
    return file


@pytest.mark.parametrize(
    ("protocol", "sent"),
    [
        ("http", {"double": 40, "sum": 30}),
        ("grpc", {"double": 40, "sum": 30}),
        ("grpc-stream", {"double": 40, "sum": 30, "counter": 10}),
    ],
)
def test_triton_answers_what_tpy_answered(recording: Path, triton: Server, protocol: str, sent: dict[str, int]) -> None:
    port = triton.ports.http if protocol == "http" else triton.ports.grpc
    done = run_tpy("replay", str(recording), "--url", f"{HOST}:{port}", "--protocol", protocol, "--speed", "max", "--json", "-")
    assert done.code == 0, (done.out, done.err)
    report = json.loads(done.out)
    assert {row["model"]: row["sent"] for row in report["models"]} == sent
    assert (report["equal"], report["different"], report["problem"]) == (sum(sent.values()), 0, "")


def counted(triton: Server) -> int:
    """Requests to `double` that Triton has counted."""
    with urllib.request.urlopen(f"http://{HOST}:{triton.ports.http}/v2/models/double/stats", timeout=30) as answer:
        return int(json.load(answer)["model_stats"][0]["inference_stats"]["success"]["count"])


@pytest.mark.parametrize("arguments", [(), ("-i", "grpc"), ("-i", "grpc", "--streaming"), ("--shared-memory", "system")])
def test_triton_counts_the_requests_that_perf_counts(triton: Server, arguments: Sequence[str]) -> None:
    port = triton.ports.grpc if "grpc" in arguments else triton.ports.http
    url = ("-u", f"{HOST}:{port}", *arguments)
    counts = ("--request-count", "60", "--warmup-request-count", "7", "--concurrency", "3", "--processes", "2", "-b", "2")
    before = counted(triton)
    [result] = results_of("-m", "double", *url, *counts)
    assert (result["requests"], result["errors"]) == (60, {})
    # Triton counts a request after its answer has left: each client's last one may be missing, or be one of the warm-up.
    assert abs(result["server_statistics"]["success"]["count"] - 60) <= 3
    wait_until(lambda: counted(triton) - before == 67)


def test_the_last_of_several_responses_is_compared(triton: Server, tmp_path: Path) -> None:
    arguments = ("-m", "counter", "-i", "grpc", "--streaming", "-u", f"{HOST}:{triton.ports.grpc}", "--request-count", "10")
    [result] = results_of(*arguments, "--input-data", data_for(tmp_path))
    assert (result["requests"], result["responses"], result["errors"]) == (10, 50, {})
