"""The examples of units, images and manifests: what is there to be checked without systemd and containers."""

from __future__ import annotations

import configparser
import os
import re
import signal
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.e2e.repositories import ModelFolder
from tpy.cli.flags import FLAG_BY_NAME, FLAGS

from .image import context, is_ignored, play
from .pages import ROOT

EXAMPLES = ROOT / "docs" / "examples"


def test_flags_of_the_examples_exist() -> None:
    known = {f"--{flag.name}" for flag in FLAGS}
    used = set(re.findall(r"--[a-z][a-z-]+(?==)", (EXAMPLES / "systemd" / "tpy.service").read_text()))
    assert used
    assert used <= known


def test_the_unit() -> None:
    """It waits longer than the server does, and reloads as the server does."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # as documented
    unit.read(EXAMPLES / "systemd" / "tpy.service")
    service = unit["Service"]
    exit_s = re.search(r"--exit-timeout-secs=(\d+)", service["ExecStart"])
    assert exit_s is not None
    assert int(service["TimeoutStopSec"]) > int(exit_s[1])
    assert service["Type"] == "notify"
    assert service["ExecReload"].endswith("-HUP $MAINPID")
    log = re.search(r"--log-file=(\S+)", service["ExecStart"])
    assert log is not None
    assert (EXAMPLES / "systemd" / "tpy.logrotate").read_text().startswith(f"{log[1]} {{")


def test_the_image_runs_as_the_user_that_the_manifest_names() -> None:
    image = (EXAMPLES / "container" / "Dockerfile").read_text()
    user = re.search(r"^USER (\d+):\d+$", image, re.MULTILINE)
    assert user is not None
    assert f"runAsUser: {user[1]}\n" in (ROOT / "deploy" / "kubernetes" / "base" / "deployment.yaml").read_text()
    assert image.count("FROM ") == 2


def test_the_image_is_built_and_serves(tmp_path: Path) -> None:
    """The steps of the Dockerfile, on this machine: what .dockerignore leaves is enough, and what the last stage has is, too. The
    dependencies are those of these tests, so that nothing is fetched."""
    source, folder = tmp_path / "context", tmp_path / "image"
    packages = sysconfig.get_path("purelib")
    offline = {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PYTHONPATH": packages}
    folder.mkdir()
    image = play(EXAMPLES / "container" / "Dockerfile", context(source), folder, offline)
    assert not {"tests", "fuzz", ".git", "benchmarks"} & {path.name for path in source.iterdir()}
    assert [path.name for path in folder.iterdir()] == ["opt"], "no sources"
    models = tmp_path / "models"
    ModelFolder(models, "m").identity()
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    command = [folder / "opt" / "tpy" / "bin" / image.command[0], *image.command[1:-1], str(models), *ports]
    assert image.command[-1] == "/models"
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": packages, "PATH": f"{folder}/opt/tpy/bin:{os.environ['PATH']}"},
    ) as server:
        assert server.stderr is not None
        log = ""
        for line in server.stderr:
            log += line
            if "Started Metrics Service" in line:
                server.send_signal(signal.SIGTERM)
        assert server.wait() == 0, log
    where = subprocess.run(
        [folder / "opt" / "tpy" / "bin" / "python", "-c", "import tpy; print(tpy.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": packages},
    )
    assert where.stdout.startswith(str(folder))


@pytest.mark.parametrize(
    ("given", "run"),
    [
        ((), "tpy serve"),
        (("--model-repository", "/models"), "tpy serve --model-repository /models"),
        (("/",), "tpy serve /"),
        (("tritonserver", "--model-repository=/models", "--id=a b"), "tritonserver --model-repository=/models --id=a b"),
        (("tpy", "check", "/models"), "tpy check /models"),
        (("sh", "-c", "echo sh"), "sh"),
    ],
)
def test_the_image_runs_a_command_that_it_is_given(tmp_path: Path, given: tuple[str, ...], run: str) -> None:
    """As Triton's image does: `docker run IMAGE tritonserver ...` is in all tutorials and most manifests."""
    for name in ("tpy", "tritonserver"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    entrypoint = EXAMPLES / "container" / "entrypoint.sh"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([entrypoint, *given], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == f"{run}\n"


@pytest.mark.parametrize(
    ("name", "ignored"),
    [
        (".git/config", True),
        ("tests/a/b.py", True),
        ("a/__pycache__/b.pyc", True),
        (".mypy_cache/x", True),
        ("src/tpy/demo.py", False),
        ("docs/tests.md", False),
    ],
)
def test_what_the_context_leaves_out(name: str, ignored: bool) -> None:
    assert is_ignored(name, (ROOT / ".dockerignore").read_text().splitlines()) is ignored


def test_what_git_ignores_does_not_go_into_the_image() -> None:
    """Environments, clones and results of measurements that lie in a working tree: gigabytes."""
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line and line[0] not in "#!"]
    assert ignored
    missed = [name for name in ignored if not is_ignored(name.replace("*", "x"), patterns)]
    assert not missed


def example(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / "container" / name).read_text()))


def test_the_compose_file_fits_the_server() -> None:
    [compose] = example("compose.yaml")
    services = compose["services"]
    tpy = services["tpy"]
    context_ = (EXAMPLES / "container" / tpy["build"]["context"]).resolve()
    assert (context_ / tpy["build"]["dockerfile"]).is_file()
    flags = {text.split("=")[0].removeprefix("--") for text in tpy["command"]}
    assert flags <= set(FLAG_BY_NAME)
    exit_s = next(int(text.partition("=")[2]) for text in tpy["command"] if text.startswith("--exit-timeout-secs="))
    assert int(tpy["stop_grace_period"].removesuffix("s")) > exit_s
    mounts = [text for service in services.values() for text in service["volumes"]]
    for text in mounts:
        source = text.split(":")[0]
        assert (EXAMPLES / "container" / source).is_file() if source.startswith("./") else True
    assert {text.split(":")[0] for text in mounts if text[0] not in "./$"} == compose["volumes"].keys()
    [scraping] = example("prometheus.yml")[0]["scrape_configs"]
    [target] = scraping["static_configs"][0]["targets"]
    assert target == f"tpy:{FLAG_BY_NAME['metrics-port'].default}"
    [source_] = example("grafana-datasource.yml")[0]["datasources"]
    assert source_["url"] == "http://prometheus:9090"
    assert {each for service in services.values() for each in service.get("depends_on", ())} <= services.keys()


def test_the_image_for_gpus_differs_in_its_base_alone() -> None:
    plain, gpu = ((EXAMPLES / "container" / name).read_text() for name in ("Dockerfile", "Dockerfile.gpu"))

    def tail(text: str) -> str:
        return text[text.index("COPY --from=build") :]

    assert tail(plain) == tail(gpu)
    assert gpu.count("FROM nvidia/cuda:") == 2
    assert "'/src[gpu]'" in gpu
