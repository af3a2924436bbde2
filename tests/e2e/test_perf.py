"""`tpy perf` against a running server: protocols, data, files, and what ends a measurement early."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from .perf_runs import refused, results_of, run_perf
from .server import ServerProcess, run_tpy

OPENAI = Path(__file__).parents[2] / "docs" / "examples" / "openai" / "models"

IDENTITY = """backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""

COUNTER = """import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_input({"name": "COUNT", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "AT", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for at in range(int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("AT", np.array([at], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

SEQUENCE = """backend: "python"
max_batch_size: 4
sequence_batching {
  oldest { max_candidate_sequences: 4 }
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] }
  ]
}
input [ { name: "V" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""

SUM = """import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
    def execute(self, requests):
        answers = []
        for request in requests:
            started = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().any()
            number = request.correlation_id()
            value = int(pb_utils.get_input_tensor_by_name(request, "V").as_numpy()[0, 0])
            self.sums[number] = value if started else self.sums[number] + value
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([[self.sums[number]]], np.int32))]))
        return answers
"""


def write(repository: Path, name: str, config: str, model: str = "") -> None:
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    if config:
        (repository / name / "config.pbtxt").write_text(config)
    if model:
        (folder / "model.py").write_text(model)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    write(repository, "same", IDENTITY)
    write(repository, "counter", "", COUNTER)
    write(repository, "sums", SEQUENCE, SUM)
    with ServerProcess("--allow-client-shm=true", "--allow-openai=true", repositories=[repository, OPENAI]) as running:
        yield running


Measured = Callable[..., dict[str, Any]]


@pytest.fixture
def measured(server: ServerProcess) -> Measured:
    """Runs, and gives the first result from its JSON."""

    def measure(*arguments: str, grpc: bool = False, code: int = 0) -> dict[str, Any]:
        url = ("-u", server.grpc, "-i", "grpc") if grpc else ("-u", server.http)
        (result,) = results_of(*url, *arguments, code=code)
        return result

    return measure


@pytest.mark.parametrize("protocol", [(), ("-i", "grpc"), ("-i", "grpc", "--streaming"), ("--input-tensor-format", "json")])
def test_requests_of_every_protocol_are_counted(measured: Measured, protocol: Sequence[str]) -> None:
    arguments = ("-m", "same", "-b", "2", "--concurrency", "3", "--request-count", "60", "--processes", "2")
    result = measured(*arguments, *protocol[2:] if "grpc" in protocol else protocol, grpc="grpc" in protocol)
    assert result["requests"] == result["responses"] == 60
    assert result["errors"] == {}
    assert result["server_statistics"]["inferences"] == 120
    assert 0 < result["latency_us"]["p50"] <= result["latency_us"]["p99"]
    assert result["server_resident_bytes"] > 1_000_000


@pytest.mark.parametrize("warmup", [("--warmup-request-count", "7"), ("--warmup", "0.1")])
@pytest.mark.parametrize("level", [("--concurrency", "3"), ("--rate", "500")])
def test_a_warm_up_is_not_counted(measured: Measured, warmup: Sequence[str], level: Sequence[str]) -> None:
    result = measured("-m", "same", "--request-count", "30", *warmup, *level)
    assert (result["requests"], result["errors"]) == (30, {})
    assert result["server_statistics"]["success"]["count"] == 30


def test_a_rate_is_kept_and_the_files_are_written(server: ServerProcess, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("a.csv", "a.json", "a.html")}
    outcome = run_perf(
        *("-m", "same", "-u", server.http, "--request-rate-range", "100:200:100", "--request-distribution", "poisson"),
        *("-p", "300", "-s", "1000", "--percentile", "97"),
        *("-f", str(files["a.csv"]), "--json", str(files["a.json"]), "--report", str(files["a.html"])),
    )
    assert outcome.code == 0, outcome.err
    rows = list(csv.reader(files["a.csv"].read_text().splitlines()))
    columns = "Request Rate,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    columns += (
        "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p97 latency,p99 latency"
    )
    assert ",".join(rows[0]) == columns  # perf_analyzer 2.51, with --percentile 97
    assert [row[0] for row in rows[1:]] == ["100", "200"]
    assert [float(row[1]) for row in rows[1:]] == pytest.approx([100, 200], rel=0.4)
    page = files["a.html"].read_text()
    assert page.count("<svg") == 5
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page
    assert "requests per second" in outcome.err  # the progress


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--binary-search", "-l", "5"), "--binary-search needs a --concurrency-range"),
        (("--request-period", "2"), "perf_analyzer's --request-period is not supported: it belongs to"),
        (("--report", "/no/such/folder/r.html"), "cannot write /no/such/folder/r.html: there is no folder /no/such/folder"),
        (("--concurrency", "4:1"), "--concurrency-range: expected an end that is not below the start, got '4:1'"),
        (("--concurrency", "1:0"), "an end of 0 goes on until --latency-threshold"),
        (("-b", "9"), "-b 9: same takes at most 8 inferences in a request"),
        (("--shape", "Q:4"), "--shape: same has no input 'Q'; it has INPUT0"),
        (("--streaming",), "--streaming is ModelStreamInfer: it needs -i grpc"),
        (("-m", "nobody"), "HTTP 404: Request for unknown model: 'nobody' is not found"),
        (("-u", "127.0.0.1:1"), "no server at 127.0.0.1:1"),
        (("--binary-search", "--concurrency", "1:8"), "looks for the highest level that meets --latency-threshold, which is not"),
        (
            ("--binary-search", "--concurrency", "1:8:*2", "-l", "5"),
            "the step is how near the result has to be: a number",
        ),
        (("-t", "2", "--concurrency", "1"), "-t, -c and -d are old forms of --concurrency-range: expected one of both"),
        (("-z", "--input-data", "random"), "-z and --data-directory are old forms of --input-data: expected one of them"),
        (("--report", "/proc/report.html"), "cannot write /proc/report.html: "),
        (("--collect-metrics", "--metrics-url", "127.0.0.1:1"), "--collect-metrics: no metrics at 127.0.0.1:1/metrics: "),
        (("--metrics-url", "a:b", "--collect-metrics"), "--metrics-url: expected HOST:PORT/PATH, got 'a:b'"),
        (("--ssl", "--ssl-https-ca-certificates-file", "/nowhere.pem"), "--ssl cannot be used: there is no file /nowhere.pem"),
        (("--ssl", "--ssl-https-ca-certificates-file", __file__), "the files of --ssl cannot be used: "),
    ],
)
def test_what_cannot_be_measured_is_said_before_the_run(server: ServerProcess, arguments: Sequence[str], said: str) -> None:
    assert said in refused("-m", "same", "-u", server.http, *arguments)


def test_a_refusal_is_one_line() -> None:
    outcome = run_tpy("perf", "-m", "same", "--request-period", "2")
    assert outcome.code == 1
    assert outcome.err.startswith("tpy: error: perf_analyzer's --request-period is not supported: it belongs to")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("perf", "-m", "same", "--warmup", "inf"),
        ("perf", "-m", "same", "-s", "nan"),
        ("analyze", "same", "--latency-ms", "nan"),
        ("analyze", "same", "--latency-ms", "-1"),
        ("analyze", "same", "--memory-mb", "0"),
    ],
)
def test_what_is_no_bound_is_refused(arguments: Sequence[str]) -> None:
    outcome = run_tpy(*arguments)
    assert outcome.code == 1
    assert outcome.err.startswith("tpy: error: Invalid value for ")
    assert outcome.err.count("\n") == 1


def test_a_worker_that_is_killed_is_one_line(server: ServerProcess, tmp_path: Path) -> None:
    process = start(server, tmp_path)
    [worker] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(worker), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.splitlines()[-1] == "tpy: error: a worker ended without a report"


def test_responses_of_a_decoupled_model(measured: Measured, server: ServerProcess, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text('{"data": [{"COUNT": [5]}]}')
    arguments = ("-m", "counter", "--input-data", str(data), "--request-count", "20", "--concurrency", "2")
    result = measured(*arguments, "--streaming", grpc=True)
    assert (result["requests"], result["responses"]) == (20, 100)
    assert 0 < result["first_response_us"]["p50"] <= result["latency_us"]["p50"]
    assert result["between_responses_us"]["p50"] < result["latency_us"]["p50"]
    data.write_text('{"data": [{"COUNT": [5]}], "validation_data": [{"AT": [4]}]}')  # the last response but the empty one
    result = measured(*arguments, "--streaming", grpc=True)
    assert (result["requests"], result["errors"]) == (20, {})
    data.write_text('{"data": [{"COUNT": [5]}], "validation_data": [{"AT": [0]}]}')
    result = measured(*arguments, "--streaming", grpc=True, code=3)
    assert result["errors"] == {"wrong answer to entry 0: output AT has 4 at 0, expected 0": 20}
    pieces = tmp_path / "payload.json"
    pieces.write_text('{"data": [{"payload": [{"COUNT": 4}]}]}')
    arguments = (
        "-m",
        "counter",
        "--service-kind",
        "generate",
        "--streaming",
        "--input-data",
        str(pieces),
        "--request-count",
        "10",
    )
    generated = measured(*arguments)
    assert (generated["requests"], generated["errors"]) == (10, {})
    assert generated["responses"] == 40
    said = refused("-m", "counter", "-u", server.http)
    assert "counter is decoupled: it answers over streams: -i grpc --streaming" in said


@pytest.mark.parametrize("streamed", [False, True])
def test_endpoints_of_openai(server: ServerProcess, tmp_path: Path, streamed: bool) -> None:
    payload = tmp_path / "payload.json"
    payload.write_text('{"data": [{"payload": [{"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 8}]}]}')
    report = tmp_path / "result.json"
    address = server.address("OpenAI HTTPService")
    assert address is not None
    outcome = run_perf(
        *("-m", "writer", "-u", address, "--service-kind", "openai", "--endpoint", "v1/chat/completions"),
        *("--input-data", str(payload), "--request-count", "5", "--json", str(report), *(("--streaming",) if streamed else ())),
    )
    assert outcome.code == 0, outcome.err + outcome.out
    (result,) = json.loads(report.read_text())["results"]
    assert (result["requests"], result["errors"]) == (5, {})
    assert result["responses"] == (5 * 8 if streamed else 5), "one for each token, none for the events around them"
    assert (result["prompt_tokens"], result["completion_tokens"]) == (5 * 5, 5 * 8)
    assert result["tokens_per_second"] == pytest.approx(40 / result["seconds"])
    if streamed:
        first, between, whole = (
            result[name]["average"] for name in ("time_to_first_token_us", "inter_token_latency_us", "latency_us")
        )
        assert 0 < first <= first + 7 * between <= whole
        assert "first token p50" in outcome.out


@pytest.mark.parametrize("level", [("--concurrency", "3"), ("--rate", "200")])
def test_sequences_are_sent_in_order(measured: Measured, tmp_path: Path, level: Sequence[str]) -> None:
    """The sums are those of whole sequences, each in order."""
    data = tmp_path / "data.json"
    streams = [[{"V": [at]} for at in (1, 2, 3)], [{"V": [at]} for at in (10, 20)]]
    sums = [[{"SUM": [1]}, {"SUM": [3]}, {"SUM": [6]}], [{"SUM": [10]}, {"SUM": [30]}]]
    data.write_text(json.dumps({"data": streams, "validation_data": sums}))
    arguments = ("-m", "sums", "--input-data", str(data), "--request-count", "50", *level)
    for grpc in (False, True):
        result = measured(*arguments, grpc=grpc)
        assert (result["requests"], result["errors"]) == (50, {})


@pytest.mark.parametrize("grpc", [False, True])
def test_tensors_in_shared_memory(measured: Measured, grpc: bool) -> None:
    result = measured("-m", "same", "--shared-memory", "system", "--request-count", "20", grpc=grpc)
    assert (result["requests"], result["errors"]) == (20, {})
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("tpy_perf_")]


@pytest.mark.parametrize(
    ("endpoint", "model", "arguments", "words"),
    [
        ("v1/chat/completions", "writer", ("--string-data", "one two three"), 5),
        ("v1/completions", "writer", ("--string-data", "one two three"), 3),
        ("v1/embeddings", "embedder", ("--string-data", "one two three"), 3),
        ("v1/completions", "writer", ("--string-length", "2000"), None),
    ],
)
def test_prompts_without_a_file(
    server: ServerProcess, endpoint: str, model: str, arguments: Sequence[str], words: int | None
) -> None:
    address = server.address("OpenAI HTTPService")
    assert address is not None
    (result,) = results_of(
        *(model, "-u", address, "--service-kind", "openai", "--endpoint", endpoint, "--request-count", "4", *arguments)
    )
    assert (result["requests"], result["errors"]) == (4, {})
    tokens = result.get("prompt_tokens", 0)
    assert tokens == 4 * words if words else 4 * 250 < tokens < 4 * 1000


def test_old_flags_are_those_that_replaced_them(measured: Measured) -> None:
    result = measured("-m", "same", "-z", "-t", "3", "--request-count", "9")
    assert (result["requests"], result["concurrency"]) == (9, 3)


def test_the_highest_level_that_meets_the_threshold_is_searched(server: ServerProcess, tmp_path: Path) -> None:
    """Every level meets a threshold of a minute: the start, then the end."""
    report = tmp_path / "result.json"
    level = ("--concurrency-range", "1:6:2", "--binary-search", "-l", "60000", "--request-count", "12")
    outcome = run_perf("-m", "same", "-u", server.http, *level, "--json", str(report))
    assert outcome.code == 0
    assert [result["concurrency"] for result in json.loads(report.read_text())["results"]] == [1, 6]


@pytest.mark.parametrize("arguments", [(), ("-i", "grpc"), ("-i", "grpc", "--streaming")])
def test_single_requests_are_recorded(server: ServerProcess, tmp_path: Path, arguments: Sequence[str]) -> None:
    data, file = tmp_path / "data.json", tmp_path / "profile.json"
    data.write_text(json.dumps({"data": [{"INPUT0": [1, 2, 3, 4]}, {"INPUT0": [5, 6, 7, 8.5]}]}))
    url = server.grpc if arguments else server.http
    given = ("--input-data", str(data), "--request-count", "10", "--profile-export-file", str(file))
    before_ns = time.time_ns()
    assert run_perf("-m", "same", "-u", url, *arguments, *given).code == 0
    document = json.loads(file.read_text())
    (experiment,) = document["experiments"]
    assert experiment["experiment"] == {"mode": "concurrency", "value": 1}
    assert len(experiment["requests"]) == 10
    begin_ns, end_ns = experiment["window_boundaries"]
    for request in experiment["requests"]:
        assert request["request_inputs"]["INPUT0"] in ([1, 2, 3, 4], [5, 6, 7, 8.5])
        assert request["response_outputs"] == [{"OUTPUT0": request["request_inputs"]["INPUT0"]}]
        (answered_ns,) = request["response_timestamps"]
        assert before_ns < begin_ns <= request["timestamp"] < answered_ns <= end_ns
    assert document["service_kind"] == "triton"


def test_records_of_sequences_and_of_several_responses(server: ServerProcess, tmp_path: Path) -> None:
    data, file = tmp_path / "data.json", tmp_path / "profile.json"
    data.write_text('{"data": [{"COUNT": [3]}]}')
    arguments = ("-m", "counter", "-u", server.grpc, "-i", "grpc", "--streaming", "--input-data", str(data))
    outputs = ("--profile-export-file", str(file), "-f", str(tmp_path / "a.csv"), "--verbose-csv")
    assert run_perf(*arguments, "--request-count", "4", *outputs).code == 0
    requests = json.loads(file.read_text())["experiments"][0]["requests"]
    assert [request["response_outputs"] for request in requests] == [[{"AT": 0}, {"AT": 1}, {"AT": 2}]] * 4
    assert all(len(request["response_timestamps"]) == 3 for request in requests)
    heading, row = csv.reader((tmp_path / "a.csv").read_text().splitlines())
    values = dict(zip(heading, row, strict=True))
    assert heading[:4] == ["Concurrency", "Inferences/Second", "Response Throughput", "Client Send"]
    assert heading[-4:] == ["p99 latency", "Avg latency", "request/response", "response wait"]
    assert float(values["Response Throughput"]) == pytest.approx(3 * float(values["Inferences/Second"]), rel=1e-4)
    length = ("--sequence-length", "3", "--sequence-length-variation", "0", "--request-count", "9")
    assert run_perf("-m", "sums", "-u", server.http, *length, "--profile-export-file", str(file)).code == 0
    sequences = [request["sequence_id"] for request in json.loads(file.read_text())["experiments"][0]["requests"]]
    assert sequences == [1, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("model", ["same", "sums"])
def test_compressed_requests_over_grpc(measured: Measured, algorithm: str, model: str) -> None:
    compression = ("--grpc-compression-algorithm", algorithm, "--sequence-length", "2")
    result = measured("-m", model, *compression, "--request-count", "10", grpc=True)
    assert (result["requests"], result["errors"]) == (10, {})


@pytest.mark.parametrize("grpc", [False, True])
def test_tracing_is_set_before_the_run(server: ServerProcess, grpc: bool) -> None:
    url = ("-u", server.grpc, "-i", "grpc") if grpc else ("-u", server.http)
    rate = str(7 + grpc)
    assert run_perf("-m", "same", *url, "--trace-rate", rate, "--trace-count", "3", "--request-count", "2").code == 0
    with urllib.request.urlopen(f"http://{server.http}/v2/models/same/trace/setting") as answer:
        settings = json.load(answer)
    assert (settings["trace_rate"], settings["trace_count"]) == (rate, "3")


def test_shared_memory_of_a_gpu_needs_one(server: ServerProcess) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    said = refused("-m", "same", "-u", server.http, "--shared-memory", "cuda")
    assert "--shared-memory cuda needs a GPU on this machine: there is no usable CUDA driver" in said


def test_a_full_disk_takes_nothing_from_the_other_files(server: ServerProcess, tmp_path: Path) -> None:
    arguments = ("perf", "-m", "same", "-u", server.http, "--request-count", "5", "-f", "/dev/full")
    outcome = run_tpy(*arguments, "--json", str(tmp_path / "result.json"))
    assert (outcome.code, outcome.err.splitlines()[-1]) == (1, "tpy: error: cannot write /dev/full: No space left on device")
    assert "same at" in outcome.out
    [result] = json.loads((tmp_path / "result.json").read_text())["results"]
    assert result["requests"] == 5
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "tpy", *arguments[:-2]]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "tpy: error: cannot write: No space left on device"


def test_a_port_of_another_protocol_is_named(server: ServerProcess) -> None:
    said = refused("-m", "same", "-u", server.grpc)
    assert said.startswith(f"no server at {server.grpc}: what is there does not speak HTTP/1.1: its answer begins with '")
    assert said.isprintable()
    assert refused("-m", "same", "-i", "grpc", "-u", server.http).startswith(f"no gRPC server at {server.http}: ")


def start(server: ServerProcess, tmp_path: Path) -> subprocess.Popen[str]:
    """A long measurement, in its second window."""
    command = [sys.executable, "-m", "tpy", "perf", "-m", "same", "-u", server.http, "-p", "300", "-r", "1000", "-s", "0"]
    process = subprocess.Popen(
        [*command, "--json", str(tmp_path / "result.json")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "window 1" not in process.stderr.readline():
        assert process.poll() is None
    return process


def test_an_interrupted_run_shows_what_was_measured(server: ServerProcess, tmp_path: Path) -> None:
    process = start(server, tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert "concurrency 1: interrupted" in out
    (result,) = json.loads((tmp_path / "result.json").read_text())["results"]
    assert result["requests"] > 0


def test_a_server_that_dies_leaves_what_was_measured(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write(repository, "same", IDENTITY)
    with ServerProcess(repositories=[repository], expect_exit=-signal.SIGKILL) as server:
        process = start(server, tmp_path)
        os.kill(server.process.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 3
        assert "the server was lost: no server at 127.0.0.1" in err
        assert "Traceback" not in err
        (result,) = json.loads((tmp_path / "result.json").read_text())["results"]
        assert result["requests"] > 0
        assert result["server_lost"]
        assert result["server_cpu_s"] is None or result["server_cpu_s"] >= 0
        assert "concurrency 1: the server was lost" in out
        server.wait_end()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "name a model: tpy perf MODEL"),
        (("a", "-m", "b"), "two models are named, a and b (-m): name one"),
        (("a", "--url=localhost:1"), "no server at localhost:1"),
        (("-m", "a", "--url=localhost:1"), "no server at localhost:1"),
    ],
)
def test_the_model_is_an_argument_or_a_flag(arguments: tuple[str, ...], text: str) -> None:
    done = run_tpy("perf", *arguments)
    assert done.code == 1
    assert text in done.err
