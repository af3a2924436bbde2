"""The start of `tpy serve`: models, output, and errors about wrong flags."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from .repositories import AFFINE_CONFIG, IDENTITY_PAIR, ModelFolder
from .server import ServerProcess, run_tpy

CONTROL_MODES = ("none", "poll", "explicit")


def scaled(client: InferenceServerClient, model: str) -> float:
    tensor = InferInput("INPUT", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
    answer = client.infer(model, [tensor]).as_numpy("OUTPUT")
    assert answer is not None
    return float(answer[0, 0])


def ready(client: InferenceServerClient) -> list[str]:
    return [entry["name"] for entry in client.get_model_repository_index() if entry.get("state") == "READY"]


def two_good_two_bad(repository: Path) -> None:
    ModelFolder(repository, "a").config(AFFINE_CONFIG).affine(1, 2)
    ModelFolder(repository, "b").config(AFFINE_CONFIG).affine(1, 3)
    ModelFolder(repository, "no_model").config(AFFINE_CONFIG).file("1/model.onnx", b"text")
    ModelFolder(repository, "no_config").config("max_batch_size: yes\n").affine(1, 1)


def test_mode_none_loads_all_and_follows_nothing(repository: Path) -> None:
    model = ModelFolder(repository, "a").config(AFFINE_CONFIG).affine(1, 2)
    with ServerProcess(repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        assert scaled(client, "a") == 2
        model.affine(1, 3)
        ModelFolder(repository, "b").config(AFFINE_CONFIG).affine(1, 1)
        assert scaled(client, "a") == 2
        assert ready(client) == ["a"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [(["--load-model=b"], ["b"]), (["--load-model", "a", "--load-model=b"], ["a", "b"]), (["--load-model=*"], ["a", "b", "c"])],
)
def test_load_model(repository: Path, flags: Sequence[str], expected: list[str]) -> None:
    for name in "abc":
        ModelFolder(repository, name).config(AFFINE_CONFIG).affine(1, 2)
    flags = ["--model-control-mode=explicit", *flags]
    with ServerProcess(*flags, repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        assert ready(client) == expected
        assert client.is_server_ready()


@pytest.mark.parametrize("mode", CONTROL_MODES)
def test_failed_models_end_the_start(repository: Path, mode: str) -> None:
    """The default: exit code 1, and each failed model once with its whole reason on standard error."""
    two_good_two_bad(repository)
    flags = [f"--model-control-mode={mode}", *(["--load-model=*"] if mode == "explicit" else [])]
    with ServerProcess(*flags, repositories=[repository], expect_exit=1) as server:
        assert server.wait_end() == 1
    lines = server.log.splitlines()
    told = sorted(re.sub(r"^.*?\] ", "", line) for line in lines if line.startswith("E"))
    assert len(told) == 2
    assert re.match(r"\"Poll failed for model directory 'no_config': .*config\.pbtxt:1:17", told[0])
    assert re.match(r"\"failed to load 'no_model' version 1: Internal: .*model\.onnx", told[1])
    assert lines[-1] == "error: creating server: Internal - failed to load all models"


@pytest.mark.parametrize("strict", [True, False])
def test_failed_models_do_not_stop_the_others(repository: Path, strict: bool) -> None:
    two_good_two_bad(repository)
    flags = ["--exit-on-error=false", f"--strict-readiness={strict}"]
    with ServerProcess(*flags, repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        assert scaled(client, "a") == 2
        assert scaled(client, "b") == 3
        assert client.is_server_live()
        assert client.is_server_ready() is not strict
        reasons = {entry["name"]: entry.get("reason", "") for entry in client.get_model_repository_index()}
        assert reasons["a"] == reasons["b"] == ""
        assert "model.onnx" in reasons["no_model"]
        assert "config.pbtxt:1:17" in reasons["no_config"]
    table = {tuple(cell.strip() for cell in line.split("|")[1:4]) for line in server.log.splitlines() if line.startswith("| ")}
    assert ("a", "1", "READY") in table
    assert ("b", "1", "READY") in table


def test_a_missing_model_of_load_model_is_a_failure(repository: Path) -> None:
    flags = ["--model-control-mode=explicit", "--load-model=nosuch"]
    with ServerProcess(*flags, repositories=[repository], expect_exit=1) as server:
        assert server.wait_end() == 1
    assert re.search(r"(?m)^E.*'nosuch'", server.log)


def test_an_empty_repository_is_served(repository: Path) -> None:
    with ServerProcess(repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        assert client.is_server_ready()
        assert client.get_model_repository_index() == []
        assert f"no models in {repository}; expected folders such as NAME/1/model.onnx" in server.log


def test_two_repositories_with_one_name_in_both(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    ModelFolder(left, "both").config(AFFINE_CONFIG).affine(1, 1)
    ModelFolder(right, "both").config(AFFINE_CONFIG).affine(1, 2)
    ModelFolder(left, "l").config(AFFINE_CONFIG).affine(1, 3)
    ModelFolder(right, "r").config(AFFINE_CONFIG).affine(1, 4)
    with ServerProcess("--exit-on-error=0", repositories=[left, right]) as server, InferenceServerClient(server.http) as client:
        assert (scaled(client, "l"), scaled(client, "r")) == (3, 4)
        index = {entry["name"]: entry for entry in client.get_model_repository_index()}
        assert index["both"] == {
            "name": "both",
            "state": "UNAVAILABLE",
            "reason": "model appears in two or more repositories",
        }
        assert client.is_server_ready()  # as 2.51


def test_namespacing_keeps_both(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    ModelFolder(left, "both").config(AFFINE_CONFIG).affine(1, 1)
    ModelFolder(right, "both").config(AFFINE_CONFIG).affine(1, 2)
    ModelFolder(left, "l").config(AFFINE_CONFIG).affine(1, 3)
    with (
        ServerProcess("--model-namespacing=true", repositories=[left, right]) as server,
        InferenceServerClient(server.http) as client,
    ):
        assert client.is_server_ready()
        assert ready(client) == ["both", "both", "l"]
        assert scaled(client, "l") == 3
        with pytest.raises(Exception, match="both"):
            scaled(client, "both")


def test_named_configurations(repository: Path) -> None:
    model = ModelFolder(repository, "a").config(AFFINE_CONFIG).affine(1, 2)
    model.file("configs/small.pbtxt", AFFINE_CONFIG.replace("max_batch_size: 8", "max_batch_size: 2"))
    ModelFolder(repository, "b").config(AFFINE_CONFIG).affine(1, 2)
    with (
        ServerProcess("--model-config-name=small", repositories=[repository]) as server,
        InferenceServerClient(server.http) as client,
    ):
        assert client.get_model_config("a")["max_batch_size"] == 2
        assert client.get_model_config("b")["max_batch_size"] == 8


@pytest.mark.parametrize("flag", ["--disable-auto-complete-config", "--strict-model-config=true"])
def test_without_auto_complete_a_configuration_must_be_whole(repository: Path, flag: str) -> None:
    ModelFolder(repository, "whole").config(AFFINE_CONFIG).affine(1, 2)
    ModelFolder(repository, "part").config('backend: "onnxruntime"\n').affine(1, 2)
    ModelFolder(repository, "none").affine(1, 2)
    with ServerProcess(flag, "--exit-on-error=false", repositories=[repository]) as server:
        with InferenceServerClient(server.http) as client:
            assert ready(client) == ["whole"]
            reasons = {entry["name"]: entry.get("reason", "") for entry in client.get_model_repository_index()}
        assert "config.pbtxt" in reasons["none"]
        assert reasons["part"]


def test_strict_model_config_false_completes(repository: Path) -> None:
    ModelFolder(repository, "none").affine(1, 2)
    with (
        ServerProcess("--strict-model-config=False", repositories=[repository]) as server,
        InferenceServerClient(server.http) as client,
    ):
        assert scaled(client, "none") == 2
        config = client.get_model_config("none")
        assert (config["max_batch_size"], config["dynamic_batching"]["preferred_batch_size"]) == (4, [4])


def test_backend_config_reaches_the_backend(repository: Path) -> None:
    ModelFolder(repository, "a").affine(1, 2)
    with (
        ServerProcess("--backend-config=onnxruntime,default-max-batch-size=7", repositories=[repository]) as server,
        InferenceServerClient(server.http) as client,
    ):
        assert client.get_model_config("a")["max_batch_size"] == 7


BACKEND = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "INPUT", "data_type": "TYPE_FP32", "dims": [1, 3]})
        config.add_output({"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [1, 3]})
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy() * 9)]) for r in requests]
"""


@pytest.mark.parametrize("inside", [True, False])
def test_python_based_backends(repository: Path, tmp_path: Path, inside: bool) -> None:
    """A model.py in --backend-directory, or in the repository's own folder of backends, serves every model that names it."""
    backends = repository / "backends" if inside else tmp_path / "backends"
    ModelFolder(backends, "nine").file("model.py", BACKEND)
    for name in ("m", "n"):
        (ModelFolder(repository, name).config('backend: "nine"\n').path / "1").mkdir()
    flags = () if inside else (f"--backend-directory={backends}",)
    with ServerProcess(*flags, repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        assert (scaled(client, "m"), scaled(client, "n")) == (9, 9)
        assert client.is_server_ready()
    assert re.search(r"\| nine +\|", server.log)


def test_log_formats_and_levels(repository: Path, tmp_path: Path) -> None:
    ModelFolder(repository, "a").config(AFFINE_CONFIG).affine(1, 2)
    with ServerProcess("--log-format=json", "--log-verbose=1", repositories=[repository]) as server:
        pass
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    assert {"time", "level", "logger", "message"} <= set(lines[0])
    assert any(line["message"] == "successfully loaded 'a'" and line["context"]["model"] == "a" for line in lines)
    [models] = [line["table"] for line in lines if line["message"] == "models"]
    assert models[3].split() == ["|", "a", "|", "1", "|", "READY", "|"]

    file = tmp_path / "server.log"
    with ServerProcess("--log-format=ISO8601", f"--log-file={file}", repositories=[repository]) as server:
        pass
    written = file.read_text()
    for said in (
        "loading: a:1",
        "successfully loaded 'a'",
        f"Started HTTPService at {server.http}",
        "successfully unloaded 'a' version 1",
    ):
        prefix = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ \S+:\d+\] "
        assert re.search(f'{prefix}"{re.escape(said)}"$', written, re.MULTILINE), written
    assert re.search(r"^\| a +\| 1 +\| READY +\|$", written, re.MULTILINE)
    assert "loaded" not in server.log

    flags = ["--log-info=false", "--log-warning=0", "--log-error=no"]
    with ServerProcess(*flags, repositories=[repository]) as server:
        pass
    assert not re.search(r"^[IWE]\d{4} ", server.log, re.MULTILINE)


def test_start_prints_tables(repository: Path) -> None:
    ModelFolder(repository, "a").config(AFFINE_CONFIG).affine(1, 2)
    with ServerProcess("--id=mine", repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        assert client.get_server_metadata()["name"] == "mine"
    for pattern in (
        r"\| onnxruntime +\|",
        r"\n\+-+\+-+\+-+\+\n\| Model \| Version \| Status \|\n\+-+\+-+\+-+\+\n\| a     \| 1       \| READY  \|\n\+-+\+-+\+-+\+\n",
        r"\| id +\| mine +\|",
    ):
        assert re.search(pattern, server.log), server.log
    assert "exit_timeout_secs" not in server.log  # at its default


def test_the_table_has_reasons_as_they_are(repository: Path) -> None:
    """On one line and without escaped quotes, which only the lines around it have: Triton's tests look for them."""
    group = 'instance_group [ { kind: KIND_CPU rate_limiter { resources [ { name: "r" count: 4 } ] } } ]'
    ModelFolder(repository, "a").config(AFFINE_CONFIG + group).affine(1, 2)
    flags = ("--rate-limit=execution_count", "--rate-limit-resource=r:1")
    with ServerProcess(*flags, repositories=[repository], expect_exit=1) as server:
        server.process.wait(60)
    reason = (
        'Resource count for "r" is limited to 1 which will prevent scheduling of one or more model instances, the minimum '
        "required count is 4"
    )
    assert f"| UNAVAILABLE: Invalid argument: {reason} |" in server.log


def test_life_cycle_lines_are_tritons(repository: Path) -> None:
    """Lines that scripts look for in the log of Triton 2.51, there once for each version or model."""
    for version in (1, 2):
        ModelFolder(repository, "m").config(AFFINE_CONFIG + "version_policy { all { } }").affine(version, 2)
    flags = ("--model-control-mode=explicit", "--load-model=m")
    with ServerProcess(*flags, repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        ModelFolder(repository, "m").file("2/model.onnx", b"text")
        with pytest.raises(InferenceServerException):
            client.load_model("m")
        client.unload_model("m")
        server.wait_log("successfully unloaded 'm' version 1")
        server.wait_log("successfully unloaded 'm' version 2")
    said = [re.sub(r"^\w\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \w+\.py:\d+\] ", "", line) for line in server.log.splitlines()]
    # The file of version 1 has not changed, so only version 2 is loaded again.
    counts = {
        '"loading: m:1"': 1,
        '"loading: m:2"': 2,
        "\"successfully loaded 'm'\"": 1,
        "\"failed to load 'm', versions 1 and 2 go on serving\"": 1,
        "\"successfully unloaded 'm' version 1\"": 1,
        "\"successfully unloaded 'm' version 2\"": 1,
        '"Waiting for in-flight requests to complete."': 1,
    }
    assert {text: said.count(text) for text in counts} == counts
    assert len([line for line in said if line.startswith("\"failed to load 'm' version 2: Internal: ")]) == 1
    assert len(re.findall(r'"Timeout \d+: Found 0 model versions that have in-flight inferences"\n', server.log)) == 1
    assert not re.search("desired|generation=|gave up waiting", server.log)


def test_a_verbose_log_has_a_line_for_each_request(repository: Path) -> None:
    ModelFolder(repository, "a").config(AFFINE_CONFIG).affine(1, 2)
    with ServerProcess(repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        scaled(client, "a")
        client.update_log_settings({"log_verbose_level": 1})
        scaled(client, "a")
        line = r'"\[request id: <id_unknown>\] model: a, version: 1, responses: 1, total: \d+ us, queue: \d+ us, .*status: OK"\n'
        server.wait_log(line)
        assert server.log.count("status: OK") == 1


def test_a_port_in_use_is_an_error_in_tritons_words(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "log"
    ModelFolder(repository, "m").identity()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = (f"--http-port={port}", "--http-address=127.0.0.1", "--grpc-port=0", "--metrics-port=0", f"--log-file={file}")
        outcome = run_tpy("serve", f"--model-repository={repository}", *flags)
    assert outcome.code == 1
    said = f"failed to start HTTP service: Unavailable - Socket '127.0.0.1:{port}' already in use"
    assert outcome.err == f"tpy: error: {said}\n"
    assert said in file.read_text()
    assert "loading: m:1" not in file.read_text(), "it is said before models are loaded"


@pytest.mark.parametrize("frontend_processes", [0, 1])
@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("nowhere/socket", "failed to listen on address 'unix:{}': No such file or directory"),
        ("x" * 200, "failed to listen on address 'unix:{}': AF_UNIX path too long"),
        ("file", "Socket 'unix:{}' already in use"),
        ("taken", "Socket 'unix:{}' already in use"),
    ],
)
def test_a_unix_socket_that_cannot_be(repository: Path, tmp_path: Path, frontend_processes: int, where: str, why: str) -> None:
    ModelFolder(repository, "m").identity()
    place = tmp_path / where
    (tmp_path / "file").write_text("not a socket")
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(tmp_path / "taken"))
        taken.listen()
        addresses = (f"--http-address=unix:{place}", "--metrics-address=127.0.0.1", "--metrics-port=0", "--grpc-port=0")
        processes = f"--frontend-processes={frontend_processes}"
        outcome = run_tpy("serve", f"--model-repository={repository}", *addresses, processes)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "taken"))
    assert outcome.code == 1
    assert outcome.err.endswith(f"tpy: error: failed to start HTTP service: Unavailable - {why.format(place)}\n")
    assert "loading: m:1" not in outcome.err
    assert (tmp_path / "file").read_text() == "not a socket"


def test_a_unix_socket_that_a_dead_server_left(repository: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left"))
    flags = (f"--http-address=unix:{tmp_path / 'left'}", "--metrics-address=127.0.0.1")
    with ServerProcess(*flags, repositories=[repository]) as server:
        assert server.address("HTTPService") == f"unix:{tmp_path / 'left'}"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nosuch=1"], "unrecognized option '--nosuch'; options: tpy serve --help"),
        (["--http-port=x"], 'Bad option: "--http-port". Invalid option value. Got x (expected an integer)'),
        (["--http-port=70000"], "Got 70000 (expected at most 65535)"),
        (
            ["--model-control-mode=sometimes"],
            "--model-control-mode: sometimes (expected one of none, poll, explicit, on-demand)",
        ),
        (["--strict-readiness=maybe"], "invalid value for bool option: maybe (expected true or false)"),
        (["--load-model=a"], "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        (["--model-control-mode=explicit", "--load-model=a", "--load-model=*"], "--load-model=* loads all models"),
        (["--http-restricted-api=nosuch:k=v"], "nosuch"),
        (["--http-restricted-api=health"], "--http-restricted-api"),
        (["--http-header-forward-pattern=("], "--http-header-forward-pattern"),
        (["--backend-config=nonsense"], "--backend-config option format is '<backend name>,<setting>=<value>'. Got nonsense"),
        (["--log-file=/no/such/folder/file"], "--log-file: cannot write '/no/such/folder/file': No such file or directory"),
        (
            ["--http-port=8123", "--metrics-port=8123"],
            "METRICS requests at the same address and port 0.0.0.0:8123",
        ),
        (["--allow-vertex-ai=true"], "AIP_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
        (["extra"], "extra"),
    ],
)
def test_wrong_flags_are_one_line(repository: Path, flags: Sequence[str], message: str) -> None:
    outcome = run_tpy("serve", f"--model-repository={repository}", *flags)
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err.startswith("tpy: error: ")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_without_a_repository() -> None:
    outcome = run_tpy("serve")
    assert (outcome.code, outcome.err) == (
        1,
        "tpy: error: --model-repository must be specified; for one folder: tpy serve DIRECTORY\n",
    )


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_repository_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "models"
    if kind == "file":
        path.write_text("")
    outcome = run_tpy("serve", f"--model-repository={path}", "--http-port=0", "--metrics-port=0", "--grpc-port=0")
    assert outcome.code == 1
    last = outcome.err.splitlines()[-1]
    assert last.startswith("tpy: error: ")
    assert str(path) in last
    assert "Traceback" not in outcome.err


def test_a_port_in_use(repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = run_tpy(
            "serve", f"--model-repository={repository}", "--http-address=127.0.0.1", f"--http-port={port}", "--metrics-port=0"
        )
    assert outcome.code == 1
    last = outcome.err.splitlines()[-1]
    assert re.match(rf"tpy: error: .*127\.0\.0\.1:{port}", last), outcome.err
    assert "in use" in last
    assert "Traceback" not in outcome.err


def test_tritons_start_scripts_run_unchanged(repository: Path, tmp_path: Path) -> None:
    """`tritonserver` as Model Analyzer's local mode and entry points of containers start it; SIGTERM ends it with 0."""
    ModelFolder(repository, "a").config(AFFINE_CONFIG).affine(1, 2)
    flags = ["--model-control-mode", "explicit", "--load-model=a", "--http-thread-count=16", "--metrics-interval-ms", "1000.0"]
    flags += ["--strict-readiness=True", "--allow-gpu-metrics=false", "--model-repo", str(repository), "--log-verbose=0"]
    program = ("-c", "from tpy.cli import tritonserver; tritonserver()")
    with ServerProcess(*flags, program=program) as server, InferenceServerClient(server.http) as client:
        assert scaled(client, "a") == 2
        client.unload_model("a")
        server.wait_log("unloaded")
    assert "\"successfully unloaded 'a' version 1\"" in server.log


def test_flags_without_effect_warn(repository: Path) -> None:
    with ServerProcess("--http-thread-count=3", "--enable-peer-access=false", repositories=[repository]) as server:
        pass
    for name in ("http-thread-count", "enable-peer-access"):
        assert re.search(rf'^W.*"--{name} has no effect: ', server.log, re.MULTILINE)


def test_flags_from_the_environment(repository: Path) -> None:
    ModelFolder(repository, "a").config(AFFINE_CONFIG).affine(1, 2)
    ModelFolder(repository, "b").config(AFFINE_CONFIG).affine(1, 2)
    environment = {"TPY_MODEL_REPOSITORY": str(repository), "TPY_MODEL_CONTROL_MODE": "explicit", "TPY_LOAD_MODEL": "a,b"}
    with ServerProcess(environment=environment) as server, InferenceServerClient(server.http) as client:
        assert ready(client) == ["a", "b"]


def test_without_a_writable_temporary_folder_commands_end_with_one_line(tmp_path: Path) -> None:
    """No file may have content (RLIMIT_FSIZE), which holds for root, too."""
    limited = "import resource as r, signal as s; s.signal(s.SIGXFSZ, s.SIG_IGN); r.setrlimit(r.RLIMIT_FSIZE, (0, 0)); "
    for arguments in (["serve", str(tmp_path)], ["check", str(tmp_path)], ["serve", "s3://bucket/models"]):
        program = f"{limited}import sys; sys.argv = ['tpy', *{arguments!r}]; from tpy.__main__ import main; main()"
        done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False, timeout=60)
        said = "tpy: error: no writable folder for temporary files: set TMPDIR to one\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", said), arguments


@pytest.mark.parametrize(("flags", "value"), [((), "1"), (("--allow-usage-data",), "0")])
def test_usage_data(tmp_path: Path, flags: tuple[str, ...], value: str) -> None:
    """Workers inherit what ONNX Runtime reads."""
    ModelFolder(tmp_path, "m").config(f'backend: "python"\n{IDENTITY_PAIR}').python(
        "import os\nclass TritonPythonModel:\n"
        "    def initialize(self, args): print('usage', os.environ['ORT_DISABLE_TELEMETRY'], flush=True)\n"
        "    def execute(self, requests): return []\n"
    )
    with ServerProcess(*flags, repositories=[tmp_path]) as server:
        server.wait_log(rf"usage {value}\b")
