"""Ray's own commands with the application builder: `serve run` by import path, `serve build`, and `serve deploy`, also of
versions that cannot be served, which leave the one before alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import yaml

from .repository import build
from .serving import BIN, environment, is_running, processes, serving, until

HTTP, GRPC = "127.0.0.1:8000", "127.0.0.1:9000"
READY = f"http://{HTTP}/v2/models/simple/ready"
ROW = np.arange(16, dtype=np.int32).reshape(1, 16)
REPLICA = "ray::ServeReplica:app1:tpy"
_SERVICERS = ("add_GRPCInferenceServiceServicer_to_server", "add_HealthServicer_to_server")


def inputs(module: Any) -> list[Any]:
    found = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, ROW.shape, "INT32")
        tensor.set_data_from_numpy(ROW)
        found.append(tensor)
    return found


def answers_right() -> bool:
    with httpclient.InferenceServerClient(HTTP, network_timeout=60) as client:
        return bool((client.infer("simple", inputs(httpclient)).as_numpy("OUTPUT0") == 2 * ROW).all())


def test_serve_run_by_import_path(tmp_path: Path) -> None:
    words = (f"repository={build(tmp_path / 'models')}", "models=simple", "cpus=0.1")
    with serving("tpy.ray:app", tmp_path / "log", environment(tmp_path / "home"), READY, *words):
        assert answers_right()


class Built:
    """An application in a module of its user's, served by what `serve build` wrote for it."""

    def __init__(self, folder: Path) -> None:
        self.repository = build(folder / "models")
        self.file = folder / "serve.yaml"
        arguments = {"repository": str(self.repository), "models": "simple", "cpus": 0.1}
        (folder / "served.py").write_text(f"import tpy.ray\n\napp = tpy.ray.app({arguments!r})\n")
        self.environ = environment(folder / "home", PYTHONPATH=str(folder))
        servicers = [f"--grpc-servicer-functions=tpy.ray:{name}" for name in _SERVICERS]
        command = [BIN / "serve", "build", "served:app", "-d", folder, "-o", self.file, *servicers]
        subprocess.run(command, check=True, env=self.environ, capture_output=True)
        self.pid = 0

    def deploy(self, import_path: str = "", args: dict[str, Any] | None = None, **options: Any) -> None:
        """`serve deploy` of the file, or of one that differs from it in this."""
        config = yaml.safe_load(self.file.read_text())
        (application,) = config["applications"]
        application["deployments"][0].update(options)
        if import_path:
            application.update({"import_path": import_path, "args": args})
        other = self.file.with_name("other.yaml")
        other.write_text(yaml.safe_dump(config))
        told = subprocess.run([BIN / "serve", "deploy", other], check=False, env=self.environ, capture_output=True, text=True)
        assert not told.returncode, told.stderr

    def status(self) -> str:
        told = subprocess.run([BIN / "serve", "status"], capture_output=True, text=True, check=False, env=self.environ).stdout
        return " ".join(told.split())

    def replicas(self) -> list[int]:
        return processes(REPLICA, self.pid)

    def configure(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`python -m tpy.ray` for this cluster."""
        command = [sys.executable, "-m", "tpy.ray", "address=auto", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=self.environ)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    built = Built(tmp_path_factory.mktemp("built"))
    with serving(built.file, built.file.with_name("log"), built.environ, READY) as process:
        built.pid = process.pid
        until(lambda: is_running(built.environ))
        yield built


def test_what_serve_build_writes_serves_both_protocols(built: Built) -> None:
    assert answers_right()
    with grpcclient.InferenceServerClient(GRPC) as client:
        assert (client.infer("simple", inputs(grpcclient)).as_numpy("OUTPUT0") == 2 * ROW).all()


def test_what_serve_build_writes_is_deployed_with_another_number_of_replicas(built: Built) -> None:
    assert len(built.replicas()) == 1
    built.deploy(num_replicas=2)
    until(lambda: len(built.replicas()) == 2, seconds=90)
    built.deploy()
    until(lambda: len(built.replicas()) == 1, seconds=90)
    assert answers_right()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("repository={models}", "gpus=2", "replicas=3", "cpus=0.1"),
            "error: too few GPUs: the application 'tpy' wants 2 for each of 3 replicas, the cluster (nodes: 1) has room for 0\n",
        ),
        (
            ("repository={models}/none",),
            "error: the node 127.0.0.1 cannot read the repository: {models}/none: No such file or directory\n",
        ),
        (("repository={models}", "cpus=0.1"), ""),
    ],
)
def test_a_configuration_that_the_cluster_cannot_serve_is_not_written(built: Built, words: tuple[str, ...], text: str) -> None:
    told = built.configure(*(word.format(models=built.repository) for word in words))
    errors = "".join(line for line in told.stderr.splitlines(keepends=True) if line.startswith("error: "))  # Ray says more
    assert errors == text.format(models=built.repository)
    assert (told.returncode, told.stdout.startswith("proxy_location")) == ((1, False) if text else (0, True))


def test_a_version_that_does_not_start_leaves_the_one_before(built: Built) -> None:
    before = built.replicas()
    built.deploy("tpy.ray:app", {"repository": str(built.repository / "none"), "cpus": 0.1})
    until(lambda: "on the node 127.0.0.1 does not start" in built.status() or print(built.status()), seconds=60)
    assert built.replicas()[:1] == before
    assert answers_right()
    built.deploy()
    until(lambda: is_running(built.environ) and built.replicas() == before, seconds=90)


def test_a_version_that_no_node_has_room_for_leaves_the_one_before(built: Built) -> None:
    before = built.replicas()
    built.deploy("tpy.ray:app", {"repository": str(built.repository)}, ray_actor_options={"num_cpus": 0.1, "num_gpus": 2})
    until(lambda: "UPDATING" in built.status() or "DEPLOYING" in built.status(), seconds=90)
    until(lambda: len(processes("ray::ChangesActor", built.pid)) == 2, seconds=90)  # the new version's has come
    assert built.replicas() == before
    assert answers_right()
    built.deploy()
    until(lambda: is_running(built.environ) and built.replicas() == before, seconds=90)
