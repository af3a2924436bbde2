"""`tpy analyze` on models of each kind, all on one running server: several together, ensembles, models that call others,
sequences, decoupled models, rates, sizes of requests, and Optuna."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tpy.config import parse_pbtxt

from .server import ServerProcess, run_tpy

SLOW = """
import time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""
CALLER = """
import asyncio
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    async def execute(self, requests):
        calls = [
            pb_utils.InferenceRequest(model_name="inner", requested_output_names=["Y"], inputs=r.inputs()).async_exec()
            for r in requests
        ]
        answers = await asyncio.gather(*calls)
        return [pb_utils.InferenceResponse(output_tensors=one.output_tensors(), error=one.error()) for one in answers]
"""
STREAM = """
import time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            for _ in range(3):
                time.sleep(0.002)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
"""
PYTHON = f'backend: "python" max_batch_size: 8 instance_group {{ kind: KIND_CPU count: 1 }} {TENSORS}'
ENSEMBLE = f"""
platform: "ensemble" max_batch_size: 8 {TENSORS}
ensemble_scheduling {{ step {{
  model_name: "inner" model_version: -1
  input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "Y" }}
}} }}
"""
SEQUENCE = """sequence_batching { max_sequence_idle_microseconds: 5000000 control_input {
  name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } } }"""
MODELS = {
    "a": (PYTHON, SLOW),
    "b": (PYTHON, SLOW),
    "inner": (PYTHON, SLOW),
    "caller": (PYTHON + "dynamic_batching { max_queue_delay_microseconds: 5000 }", CALLER),
    "pipeline": (ENSEMBLE, ""),
    "stateful": (PYTHON + SEQUENCE, SLOW),
    "stream": (PYTHON + "model_transaction_policy { decoupled: true }", STREAM),
}
BRIEFLY = ("--measurement-interval=60", "--max-trials=3", "--threads=", "--batches=8", "--instances=1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for name, (config, code) in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if code:
            (repository / name / "1" / "model.py").write_text(code)
    with ServerProcess("--model-control-mode=explicit", repositories=[repository]) as running:
        yield running


def analyze(server: ServerProcess, output: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The results, and what was printed. The options of the arguments win."""
    done = run_tpy("analyze", *BRIEFLY, *arguments, f"--url={server.http}", f"--grpc-url={server.grpc}", f"--output={output}")
    assert done.code == 0, done.err
    results: dict[str, Any] = json.loads((output / "results.json").read_bytes())
    return results, done.out


def test_two_models_together(server: ServerProcess, tmp_path: Path) -> None:
    arguments = ("a", "b", "--together", "--delays=off,0", "--concurrency=8", "--latency-ms=5000")
    results, out = analyze(server, tmp_path, *arguments)
    best, default = results["best"], results["default"]
    assert best["settings"] == {"a/delay_us": 0, "b/delay_us": 0}
    # Both are under load in each measurement, and each alone would have made the sum.
    assert best["figures"]["throughput"] == pytest.approx(sum(one["throughput"] for one in best["models"].values()))
    for name in ("a", "b"):
        assert best["models"][name]["throughput"] > 1.5 * default["models"][name]["throughput"]
        written = (tmp_path / name / "config.pbtxt").read_text()
        assert f"# {name}:\n" in written
        assert parse_pbtxt(written).config.dynamic_batching is not None
    assert "Best for a: perf_throughput with perf_latency_p99 <= 5000 ms and b: perf_throughput with perf_" in out
    lines = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert [line["model"] for line in lines] == ["a", "b"] * len(results["rows"])
    page = (tmp_path / "report.html").read_text()
    assert "Throughput against latency of a" in page
    assert "Throughput against latency of b" in page


@pytest.mark.parametrize("model", ["pipeline", "caller"])
def test_the_settings_of_members(server: ServerProcess, tmp_path: Path, model: str) -> None:
    members = ["--members=inner"] if model == "caller" else []
    results, out = analyze(server, tmp_path, model, *members, "--delays=off,0", "--concurrency=8", "--latency-ms=5000")
    assert results["best"]["settings"]["inner/delay_us"] == 0, out
    written = parse_pbtxt((tmp_path / ("inner/config.pbtxt" if model == "caller" else "config.pbtxt")).read_text()).config
    assert written.dynamic_batching is not None


def test_members_with_values_of_their_own(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "profile_models: [pipeline]\ntriton_launch_mode: remote\nrun_config_search_mode: brute\nconcurrency: 2\n"
        "client_protocol: http\nduration_seconds: 3\n"
        "ensemble_composing_models: {inner: {model_config_parameters: {instance_group: [{count: [1, 2]}]}}}\n"
    )
    flags = ("--measurement-interval=60", "--max-trials=3", f"--url={server.http}", f"--output={tmp_path}")
    done = run_tpy("analyze", "-f", str(file), *flags)
    assert done.code == 0, done.err
    assert "duration_seconds has no effect: " in done.err
    results = json.loads((tmp_path / "results.json").read_bytes())
    assert [row["settings"] for row in results["rows"]] != []
    assert sorted(row["settings"]["inner/instances"] for row in results["rows"]) == [1, 2]


def test_a_model_with_sequences(server: ServerProcess, tmp_path: Path) -> None:
    arguments = ("stateful", "--instances=1,4", "--sequence-length=5", "--concurrency=4", "--search=brute")
    results, out = analyze(server, tmp_path, *arguments)
    assert "delay_us stays as it is: it has a sequence batcher" in json.dumps(results["notes"])
    assert {row["settings"]["instances"]: row["figures"]["errors"] for row in results["rows"]} == {1: 0, 4: 0}
    assert all(row["figures"]["throughput"] > 0 for row in results["rows"]), out


def test_a_decoupled_model(server: ServerProcess, tmp_path: Path) -> None:
    arguments = ("stream", "--delays=off", "--concurrency=2", "--objective=time_to_first_token_p99")
    results, _ = analyze(server, tmp_path, *arguments)
    figures = results["best"]["figures"]
    assert figures["responses_per_s"] == pytest.approx(3 * figures["throughput"], rel=0.5)
    assert 2 <= figures["first_p99_ms"] <= figures["p99_ms"]
    assert figures["between_p99_ms"] >= 2


def test_rates_in_place_of_clients(server: ServerProcess, tmp_path: Path) -> None:
    results, out = analyze(server, tmp_path, "a", "--delays=off", "--rate=20", "--measurement-interval=400")
    assert 5 < results["best"]["figures"]["throughput"] < 60  # a client that waits for its answers would have 100
    assert "requests/s" in out
    assert "requests_per_s" in (tmp_path / "results.csv").read_text()


def test_sizes_of_requests(server: ServerProcess, tmp_path: Path) -> None:
    results, _ = analyze(server, tmp_path, "a", "--delays=off", "--batch-size=1,8", "--concurrency=1")
    assert results["best"]["settings"] == {"request_batch": 8}
    assert results["best"]["figures"]["throughput"] > 2 * results["default"]["figures"]["throughput"]


@pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="Optuna is not installed")
def test_the_search_of_optuna(server: ServerProcess, tmp_path: Path) -> None:
    flags = ("--search=optuna", "--optuna-max-trials=4", "--delays=off,0", "--concurrency=8")
    results, _ = analyze(server, tmp_path, "a", *flags)
    assert results["search"] == "optuna"
    assert results["best"]["settings"] == {"delay_us": 0}


def test_models_that_are_measured_together_have_the_same_load(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "run_config_profile_models_concurrently_enable: true\ntriton_launch_mode: remote\n"
        "profile_models: {a: {parameters: {concurrency: 1}}, b: {parameters: {concurrency: [1, 4]}}}\n"
    )
    done = run_tpy("analyze", "-f", str(file), f"--url={server.http}", f"--output={tmp_path}")
    assert done.code == 1
    assert "models that are measured together have the same --concurrency: a has 1, b has 1,4" in done.err
