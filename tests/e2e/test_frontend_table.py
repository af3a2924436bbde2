"""A frontend of another distribution is found by its entry point, with its flags, in the server and in frontend processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.server import ServerProcess

ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parent / "third_party")}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tpy", "serve", *arguments],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("processes", [0, 2])
def test_a_frontend_of_somebody_else_serves(tmp_path: Path, processes: int) -> None:
    ModelFolder(tmp_path, "affine").affine(1, 2.0).config(AFFINE_CONFIG)
    flags = ("--allow-hello", "--hello-greeting=good-day", f"--frontend-processes={processes}")
    with ServerProcess(*flags, repositories=[tmp_path], environment=ENVIRONMENT) as server:
        host, port = server.wait_log(r"Started HelloService at ([\d.]+):(\d+)").groups()
        with socket.create_connection((host, int(port)), timeout=20) as connection, connection.makefile() as lines:
            connection.sendall(b"affine\nnobody\n")
            assert [lines.readline(), lines.readline()] == ["good-day affine: True\n", "good-day nobody: False\n"]
            server.stop()
            assert lines.readline() == "bye\n"
            assert lines.readline() == ""


def test_its_flags_are_those_of_the_server(tmp_path: Path) -> None:
    assert "--hello-greeting" in run("--help").stdout
    refused = run("--allow-hello", "--hello-greeting=", f"--model-repository={tmp_path}")
    assert refused.returncode == 1
    assert "--hello-greeting: expected a word" in refused.stderr
    clash = run(
        "--allow-hello", "--hello-port=23900", "--http-port=23900", "--http-address=127.0.0.1", f"--model-repository={tmp_path}"
    )
    assert clash.returncode == 1
    assert "cannot listen to HELLO requests and HTTP requests at the same address and port 127.0.0.1:23900" in clash.stderr
    assert (
        "--hello-greeting"
        not in subprocess.run(
            [sys.executable, "-m", "tpy", "serve", "--help"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    )


_FRONTEND = """
from tpy.flag import new_flag
from tpy.frontends.table import Frontend
FRONTEND = Frontend(
    name="other", service="OtherService", module="tpy_other_server", flags=[new_flag("Other", "{flag}", True, "A flag.")]
)
"""


@pytest.mark.parametrize(
    ("entry", "source", "problem"),
    [
        (
            "broken",
            "",
            "the frontend 'broken' of tpy-broken 1.0 (tpy_broken:FRONTEND) cannot be loaded: ModuleNotFoundError: No module",
        ),
        (
            "broken",
            "FRONTEND = 1",
            "the frontend 'broken' of tpy-broken 1.0 (tpy_broken:FRONTEND) cannot be loaded: TypeError: expected a Frontend",
        ),
        (
            "http",
            _FRONTEND.format(flag="other"),
            "both want the name 'http'; remove one of the packages",
        ),
        (
            "other",
            _FRONTEND.format(flag="http-port"),
            "both want the flag --http-port; remove one of the packages",
        ),
    ],
)
def test_a_frontend_that_cannot_be_loaded_is_named(tmp_path: Path, entry: str, source: str, problem: str) -> None:
    package = tmp_path / "tpy_broken-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: tpy-broken\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[tpy.frontends]\n{entry} = tpy_broken:FRONTEND\n")
    if source:
        (tmp_path / "tpy_broken.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "tpy", "serve", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("tpy: error: ")
    assert "tpy-broken 1.0 (tpy_broken:FRONTEND)" in line
    assert problem in line
