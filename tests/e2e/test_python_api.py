"""The python backend's API over a real server: metrics, readiness, late answers, state, iterations, error codes, and backends
that are written in Python."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from .repositories import ModelFolder
from .server import ServerProcess
from .waiting import wait_until

IO = """
backend: "python"
max_batch_size: 0
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""

PREAMBLE = """
import os, threading
import numpy as np
import triton_python_backend_utils as pb_utils
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
def given(request, name="IN"):
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0])
def value(number, name="OUT"):
    return pb_utils.Tensor(name, np.array([number], np.int32))
def answer(*tensors):
    return pb_utils.InferenceResponse(list(tensors))
"""

METERED = """
class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("requests_seen", 'with "quotes" and\\nlines', pb_utils.MetricFamily.COUNTER)
        self.metric = self.family.Metric(labels={"model": args["model_name"]})
        self.times = pb_utils.MetricFamily("seen_sizes", "", pb_utils.MetricFamily.HISTOGRAM)
        self.sizes = self.times.Metric(buckets=[1, 10])
    def execute(self, requests):
        for request in requests:
            self.metric.increment(1)
            self.sizes.observe(given(request))
        return [answer(value(self.metric.value())) for _ in requests]
"""

WITH_OPINION = """
class TritonPythonModel:
    def is_ready(self):
        return not os.path.exists(os.path.join(pb_utils.get_model_dir(), "not_ready"))
    def execute(self, requests):
        return [answer(value(1)) for _ in requests]
"""

LATE = """
class TritonPythonModel:
    def initialize(self, args):
        self.waiting = []
    def execute(self, requests):
        for request in requests:
            self.waiting.append((given(request), request.get_response_sender()))
        if len(self.waiting) >= 4:
            waiting, self.waiting = self.waiting, []
            threading.Thread(target=self.work, args=(waiting,)).start()
    def work(self, waiting):
        total = sum(number for number, _ in waiting)
        for number, sender in waiting:
            sender.send(answer(value(1000 * number + total)), FINAL)
"""

GENERATIVE = """
class TritonPythonModel:
    def initialize(self, args):
        self.rounds = {}
    def execute(self, requests):
        for request in requests:
            key = request.correlation_id()
            number = self.rounds[key] = self.rounds.get(key, 0) + 1
            sender = request.get_response_sender()
            if number == given(request):
                del self.rounds[key]
                sender.send(answer(value(number)), FINAL)
            else:
                sender.send(answer(value(number)))
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
"""

SUMS = """
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for request in requests:
            total = given(request) + given(request, "BEFORE")
            out.append(answer(value(total), value(total, "AFTER")))
        return out
"""

CODES = """
class TritonPythonModel:
    def execute(self, requests):
        code = pb_utils.TritonError
        codes = [code.UNKNOWN, code.INTERNAL, code.NOT_FOUND, code.INVALID_ARG, code.UNAVAILABLE, code.UNSUPPORTED,
                 code.ALREADY_EXISTS, code.CANCELLED]
        return [pb_utils.InferenceResponse(error=code("told", codes[given(request)])) for request in requests]
"""

STATUSES = (
    (400, "UNKNOWN"),
    (500, "INTERNAL"),
    (404, "NOT_FOUND"),
    (400, "INVALID_ARGUMENT"),
    (503, "UNAVAILABLE"),
    (501, "UNIMPLEMENTED"),
    (400, "ALREADY_EXISTS"),
    (400, "CANCELLED"),
)
"""Of the codes in their order: over HTTP, and over gRPC."""

BACKEND = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]})
        return config
    def initialize(self, args):
        self.factor = int(open(os.path.join(pb_utils.get_model_dir(), "factor")).read())
    def execute(self, requests):
        return [answer(value(self.factor * given(request))) for request in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("python_api")
    repository = folder / "repository"
    thread = 'parameters { key: "TPY_PYTHON_ISOLATION" value { string_value: "thread" } }\n'
    two = "instance_group [ { kind: KIND_CPU count: 2 } ]\n"
    state = """
        sequence_batching { oldest { max_candidate_sequences: 4 }
          state [ { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_INT32 dims: [ 1 ]
          initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } ] }
    """
    iterative = "sequence_batching { iterative_sequence: true }\nmodel_transaction_policy { decoupled: true }\n"
    for name, code, config in (
        ("metered", METERED, two),
        ("metered_thread", METERED, thread),
        ("opinion", WITH_OPINION, two),
        ("late", LATE, ""),
        ("late_thread", LATE, thread),
        ("generative", GENERATIVE, iterative),
        ("generative_thread", GENERATIVE, iterative + thread),
        ("sums", SUMS, state),
        ("sums_thread", SUMS, state + thread),
        ("codes", CODES, ""),
    ):
        ModelFolder(repository, name).config(IO + config).file("1/model.py", PREAMBLE + code)
    for name, factor in (("double", "2"), ("triple", "3")):
        ModelFolder(repository, name).config('backend: "multiply"').file("1/factor", factor)
    ModelFolder(folder / "backends", "multiply").file("model.py", PREAMBLE + BACKEND)
    with ServerProcess(
        f"--backend-directory={folder / 'backends'}",
        "--model-control-mode=explicit",
        "--load-model=*",
        repositories=[repository],
    ) as running:
        running.repository = repository  # type: ignore[attr-defined]  # for the tests of this file
        yield running


def call(url: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as response:
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    return status, json.loads(text) if text[:1] == b"{" else text.decode()


def infer(server: ServerProcess, model: str, number: int, **parameters: Any) -> tuple[int, Any]:
    body = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [number]}], "parameters": parameters}
    status, answer = call(f"http://{server.http}/v2/models/{model}/infer", body)
    return status, answer["outputs"][0]["data"][0] if status == 200 else answer["error"]


def metrics(server: ServerProcess) -> list[str]:
    _, page = call(f"http://{server.metrics}/metrics")
    return [line for line in page.splitlines() if "requests_seen" in line or "seen_sizes" in line]


def test_metrics_of_models(server: ServerProcess) -> None:
    for number in range(1, 11):
        assert infer(server, "metered", number) == (200, number)
    assert infer(server, "metered_thread", 99) == (200, 1)
    assert metrics(server) == [
        '# HELP requests_seen with "quotes" and\\nlines',
        "# TYPE requests_seen counter",
        'requests_seen{model="metered"} 10',
        'requests_seen{model="metered_thread"} 1',
        "# TYPE seen_sizes histogram",
        "seen_sizes_count 11",
        "seen_sizes_sum 154",
        'seen_sizes_bucket{le="1"} 1',
        'seen_sizes_bucket{le="10"} 10',
        'seen_sizes_bucket{le="+Inf"} 11',
    ]
    assert call(f"http://{server.http}/v2/repository/models/metered/unload", {})[0] == 200
    wait_until(lambda: metrics(server)[1:3] == ["# TYPE requests_seen counter", 'requests_seen{model="metered_thread"} 1'])


def test_readiness_is_what_the_model_says(server: ServerProcess) -> None:
    url = f"http://{server.http}/v2/models/opinion/ready"
    grpc = tritonclient.grpc.InferenceServerClient(server.grpc)
    repository: Path = server.repository  # type: ignore[attr-defined]
    mark = repository / "opinion" / "1" / "not_ready"
    assert call(url)[0] == 200
    assert grpc.is_model_ready("opinion")
    mark.touch()
    assert call(url) == (400, {"error": "Model version not ready"})
    assert not grpc.is_model_ready("opinion")
    assert infer(server, "opinion", 1) == (200, 1)
    os.unlink(mark)
    assert call(url)[0] == 200
    grpc.close()


@pytest.mark.parametrize("model", ["late", "late_thread"])
def test_answers_after_execute(server: ServerProcess, model: str) -> None:
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda number: infer(server, model, number), range(1, 5)))
        assert answers == [(200, 1000 * number + 10) for number in range(1, 5)]


@pytest.mark.parametrize("model", ["generative", "generative_thread"])
def test_generative_use(server: ServerProcess, model: str) -> None:
    """Requests without an id are sequences of their own; each is executed until it sends its last response."""

    def generate(count: int) -> list[int]:
        answers: list[int] = []
        request = urllib.request.Request(
            f"http://{server.http}/v2/models/{model}/generate_stream", json.dumps({"IN": count}).encode()
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            for line in response:
                if line.startswith(b"data: "):
                    answers.append(json.loads(line[6:])["OUT"])
        return answers

    with ThreadPoolExecutor(8) as pool:
        for count, answers in zip(range(1, 33), pool.map(generate, range(1, 33)), strict=True):
            assert answers == list(range(1, count + 1))


@pytest.mark.parametrize("model", ["sums", "sums_thread"])
def test_implicit_state(server: ServerProcess, model: str) -> None:
    totals = dict.fromkeys((1, 2, 3), 0)
    for step in range(5):
        for sequence in totals:
            totals[sequence] += 10 * sequence + step
            flags = {"sequence_id": sequence, "sequence_start": step == 0, "sequence_end": step == 4}
            assert infer(server, model, 10 * sequence + step, **flags) == (200, totals[sequence])
    assert infer(server, model, 7, sequence_id=1, sequence_start=True, sequence_end=True) == (200, 7)


def test_every_error_code(server: ServerProcess) -> None:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as grpc:
        for number, (status, name) in enumerate(STATUSES):
            assert infer(server, "codes", number) == (status, "told")
            tensor = tritonclient.grpc.InferInput("IN", [1], "INT32")
            tensor.set_data_from_numpy(np.array([number], np.int32))
            with pytest.raises(InferenceServerException) as caught:
                grpc.infer("codes", [tensor])
            assert (caught.value.status(), caught.value.message()) == (f"StatusCode.{name}", "told")


def test_a_python_based_backend(server: ServerProcess) -> None:
    assert infer(server, "double", 21) == (200, 42)
    assert infer(server, "triple", 14) == (200, 42)
    _, config = call(f"http://{server.http}/v2/models/double/config")
    assert (config["backend"], config["input"][0]["name"], config["output"][0]["dims"]) == ("multiply", "IN", [1])
