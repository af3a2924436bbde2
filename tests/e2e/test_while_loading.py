"""While the models of the start load: health is answered, and with --serve-while-loading everything."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
from tritonclient.http import InferenceServerClient

from .repositories import AFFINE_CONFIG, IDENTITY_PAIR, ModelFolder
from .server import ServerProcess
from .test_start import ready, scaled, two_good_two_bad
from .waiting import wait_until

_HELD = """import pathlib, time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        while not pathlib.Path(args["model_repository"]).parent.with_name("go").exists():
            time.sleep(0.01)
    def execute(self, requests):
        return []
"""


def status(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, f"{error.headers.get('Retry-After')} {error.read().decode()}"


@pytest.mark.parametrize("flags", [[], ["--frontend-processes=2"]])
def test_it_is_live_while_models_load(repository: Path, flags: Sequence[str]) -> None:
    """Orchestrators kill what does not answer. All but health waits, as with Triton, and nobody is refused when it changes."""
    ModelFolder(repository, "held").config(f'backend: "python"\n{IDENTITY_PAIR}\n').python(_HELD)
    ModelFolder(repository, "a").config(AFFINE_CONFIG).affine(1, 2)
    server = ServerProcess(*flags, repositories=[repository])
    server.start()
    place = server.wait_log(r'HTTP answers health checks at ([^"]+)"')[1]
    server.wait_log("successfully loaded 'a'")
    assert status(f"http://{place}/v2/health/live") == (200, "")
    assert status(f"http://{place}/v2/health/ready")[0] == 400
    for path in ("", "v2", "v2/models/a/ready", "v2/models/a"):
        assert status(f"http://{place}/{path}") == (503, '1 {"error":"the server is starting: its models are not loaded yet"}')
    assert "Started" not in server.log
    (repository.parent / "go").touch()
    wait_until(lambda: status(f"http://{place}/v2/health/ready")[0] == 200, within_s=60)
    server.wait_log("Started HTTPService")
    assert server.http == place
    assert server.stop() == 0


def test_health_may_be_restricted_while_models_load(repository: Path) -> None:
    ModelFolder(repository, "held").config(f'backend: "python"\n{IDENTITY_PAIR}\n').python(_HELD)
    server = ServerProcess("--http-restricted-api=health:key=value", repositories=[repository])
    server.start()
    place = server.wait_log(r'HTTP answers health checks at ([^"]+)"')[1]
    assert status(f"http://{place}/v2/health/live")[0] == 503
    assert server.stop() == 0


@pytest.mark.parametrize("flags", [[], ["--frontend-processes=2"]])
def test_it_serves_while_models_load(repository: Path, flags: Sequence[str]) -> None:
    ModelFolder(repository, "held").config(f'backend: "python"\n{IDENTITY_PAIR}\n').python(_HELD)
    ModelFolder(repository, "a").config(AFFINE_CONFIG).affine(1, 2)
    server = ServerProcess("--serve-while-loading=true", *flags, repositories=[repository])
    server.start()
    server.wait_log("Started Metrics")
    with InferenceServerClient(server.http) as client:
        wait_until(lambda: ready(client) == ["a"], within_s=60)
        assert scaled(client, "a") == 2
        states = {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}
        assert states == {"a": "READY", "held": "LOADING"}
        for path in ("v2/models/held", "v2/models/held/versions/1"):
            assert status(f"http://{server.http}/{path}")[1].endswith('; it is loading"}')
        assert client.is_server_live()
        assert not client.is_server_ready()
        (repository.parent / "go").touch()
        wait_until(client.is_server_ready, within_s=60)
    assert server.stop() == 0


def test_one_who_asks_early_is_answered(repository: Path) -> None:
    held = _HELD.replace("return []", "return [pb_utils.InferenceResponse([get(request)]) for request in requests]")
    get = (
        "def get(request):\n"
        "    return pb_utils.Tensor('OUTPUT0', pb_utils.get_input_tensor_by_name(request, 'INPUT0').as_numpy())\n"
    )
    ModelFolder(repository, "held").config(f'backend: "python"\n{IDENTITY_PAIR}\n').python(held + get)
    server = ServerProcess("--serve-while-loading=true", repositories=[repository])
    server.start()
    server.wait_log("Started Metrics")
    command = [sys.executable, "-m", "tpy", "infer", "held", "INPUT0=[7]", f"--url={server.http}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
        assert asking.stderr is not None
        assert asking.stderr.readline() == "waiting for 'held', which is loading\n"
        (repository.parent / "go").touch()
        out, err = asking.communicate(timeout=60)
    assert (asking.returncode, err) == (0, "")
    assert "7" in out
    assert server.stop() == 0


def test_a_failed_start_ends_a_server_that_serves_while_it_loads(repository: Path) -> None:
    two_good_two_bad(repository)
    with ServerProcess("--serve-while-loading=true", repositories=[repository], expect_exit=1) as server:
        assert server.wait_end() == 1
    assert server.log.splitlines()[-1] == "error: creating server: Internal - failed to load all models"
