"""`tpy analyze` with a server of its own and with a running one. A model whose execution takes the same time for any batch: with
eight clients dynamic batching wins by far."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tpy.cli.parsing import UsageError
from tpy.config import parse_pbtxt
from tpy.errors import TpyError
from tpy_tools.commands.analyze import analyze

from .server import ServerProcess, run_tpy

MODEL = """
import time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        if '"broken"' in args["model_config"]:
            raise RuntimeError("no such engine")
    def execute(self, requests):
        time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""
LARGE = """
    def initialize(self, args):
        self.weights = b"x" * 60_000_000
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU count: 1 }
"""
QUICKLY = ("--instances=1", "--batches=8", "--delays=off,0", "--concurrency=1,8", "--measurement-interval=60", "--max-trials=3")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "slow"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL)
    (folder / "config.pbtxt").write_text(CONFIG)
    return folder.parent


def test_a_search_that_is_interrupted_goes_on_and_finds_the_best(repository: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = ["slow", f"--model-repository={repository}", "--parameter=engine=broken", *QUICKLY, f"--output={output}"]
    program = [sys.executable, "-m", "tpy", "analyze", *command]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = next((line for line in process.stderr if line.startswith("1. ")), "")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted; run the same command to resume" in err
    assert "configuration" in out
    kept = (output / "checkpoint.jsonl").read_bytes()

    done = run_tpy("analyze", *command)
    assert done.code == 0, done.err
    assert "measurements of an earlier run are in" in done.err
    assert first
    assert first not in done.err
    assert (output / "checkpoint.jsonl").read_bytes().startswith(kept)
    assert "Best for perf_throughput: delay_us=0\n" in done.out
    assert "RuntimeError: no such engine" in done.out
    written = (output / "config.pbtxt").read_text()
    assert written.startswith("# By tpy analyze: the best of ")
    found = parse_pbtxt(written).config
    assert found.dynamic_batching is not None
    assert (found.max_batch_size, found.backend) == (8, "python")
    results = json.loads((output / "results.json").read_bytes())
    gain = results["best"]["figures"]["throughput"] / results["default"]["figures"]["throughput"]
    assert gain > 2
    assert results["best"]["figures"]["batch"] > 2
    assert "<svg" in (output / "report.html").read_text()
    assert (repository / "slow" / "config.pbtxt").read_text() == CONFIG


def test_the_memory_of_each_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "large"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL.replace("    def initialize(self, args):", LARGE))
    (folder / "config.pbtxt").write_text(CONFIG.replace("count: 1", "count: 3"))
    flags = ("--instances=1,3", "--batches=8", "--delays=off", "--concurrency=1", "--measurement-interval=60", "--max-trials=3")
    done = run_tpy(
        "analyze", "large", f"--model-repository={folder.parent}", "--objective=memory", *flags, f"--output={tmp_path / 'out'}"
    )
    assert done.code == 0, done.err
    results = json.loads((tmp_path / "out" / "results.json").read_bytes())
    assert results["best"]["settings"] == {"instances": 1}
    saved_mb = results["default"]["figures"]["memory_mb"] - results["best"]["figures"]["memory_mb"]
    assert 60 < saved_mb < 300, done.out  # two instances of 60 MB each


def test_a_running_server_is_left_as_it_was(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with ServerProcess("--model-control-mode=explicit", "--load-model=slow", repositories=[repository]) as server:
        before = _config(server)
        file.write_text(
            "profile_models: [slow]\ntriton_launch_mode: remote\nrun_config_search_mode: brute\nclient_protocol: grpc\n"
            f"model_repository: /elsewhere\ntriton_http_endpoint: {server.http}\ntriton_grpc_endpoint: {server.grpc}\n"
            "constraints: {perf_latency_p99: {max: 0.001}}\n"
        )
        done = run_tpy("analyze", "-f", str(file), *QUICKLY, "--concurrency=2", f"--output={tmp_path / 'out'}")
        assert done.code == 1, done.err
        assert "No configuration meets the constraints: perf_throughput with perf_latency_p99 <= 0.001 ms." in done.out
        assert done.out.count("not perf_latency_p99 <= 0.001 ms") == 2
        assert _config(server) == before
    assert not (tmp_path / "out" / "config.pbtxt").exists()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_headers_go_to_a_running_server(repository: Path, tmp_path: Path, protocol: str) -> None:
    """Each question and each request needs the header."""
    apis = "inference,metadata,model-config,model-repository,statistics:key=sesame"
    restricted = (f"--http-restricted-api={apis}", f"--grpc-restricted-protocol={apis}")
    flags = ("--model-control-mode=explicit", "--load-model=slow", *restricted)
    with ServerProcess(*flags, repositories=[repository]) as server:
        asked = ["analyze", "slow", "--url", server.http, "--grpc-url", server.grpc, "-i", protocol, *QUICKLY]
        asked += ["--delays=off", "--concurrency=1"]
        name = "key" if protocol == "http" else "triton-grpc-protocol-key"
        refused = run_tpy(*asked, f"--output={tmp_path / 'refused'}")
        assert (refused.code, "HTTP 403" in refused.err) == (1, True), refused.err
        done = run_tpy(*asked, "-H", "key: sesame", "-H", f"{name}: sesame", f"--output={tmp_path / 'out'}")
    assert done.code == 0, done.err
    assert "failed (" not in done.err


def _config(server: ServerProcess) -> object:
    with urllib.request.urlopen(f"http://{server.http}/v2/models/slow/config") as answer:
        return json.load(answer)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "missing argument 'MODEL'"),
        (["m"], "say either where the models are (--model-repository DIRECTORY) or where the server is (--url HOST:PORT)"),
        (["m", "--model-repository=x", "-H", "key:x"], "--header: goes to a running server, expected --url HOST:PORT with it"),
        (["m", "--url=127.0.0.1:1"], "model 'm' cannot be analyzed: no server at 127.0.0.1:1"),
        (["m", "--batches=0"], "expected a range upwards from 1 at least, got '0'"),
        (["m", "--objective=speed"], "there is no metric 'speed'; there are throughput, latency, memory, perf_throughput"),
    ],
)
def test_what_cannot_begin_is_one_line(arguments: list[str], text: str, tmp_path: Path) -> None:
    done = run_tpy("analyze", *arguments, f"--output={tmp_path}")
    assert done.code == 1
    assert text in done.err
    assert done.err.count("\n") == 1, done.err


def test_optuna_that_is_not_installed_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)  # as if it were not there
    with pytest.raises(UsageError, match="--search optuna needs Optuna: pip install optuna"):
        analyze.main(["m", "--url=127.0.0.1:1", "--search=optuna", f"--output={tmp_path}"], standalone_mode=False)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--streaming"], "--streaming is ModelStreamInfer: it needs --protocol grpc"),
        (["--field=optimisation=[{}]"], "--field: a configuration has no field 'optimisation'"),
        (["--field=optimization={}"], "expected --field NAME=[JSON, ...], got 'optimization={}'"),
        (["--threads=0"], "expected a range upwards from 1 at least, got '0'"),
        (["--rate=0"], "expected a range upwards from 1 at least, got '0'"),
    ],
)
def test_values_that_make_no_sense(arguments: list[str], text: str, tmp_path: Path) -> None:
    with pytest.raises((TpyError, UsageError)) as caught:
        analyze.main(["m", "--url=127.0.0.1:1", *arguments, f"--output={tmp_path}"], standalone_mode=False)
    assert text in str(caught.value)


def test_a_folder_that_is_not_writable_is_said_first(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_tpy("analyze", "slow", f"--model-repository={repository}", f"--output={tmp_path / 'file' / 'out'}")
    assert (done.code, done.err) == (1, f"tpy: error: --output {tmp_path / 'file' / 'out'}: {os.strerror(20)}\n")
