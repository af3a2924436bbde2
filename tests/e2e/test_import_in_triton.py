"""Repositories that `tpy import` made, in NVIDIA's Triton, where it is installed ($TPY_PEERS): the way out is free."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from benchmarks.servers.peers import find_peers
from benchmarks.servers.plans import TritonPlan
from benchmarks.servers.process import Server, running

from . import test_import_mlserver as mlserver
from . import test_import_torchserve as torchserve
from .server import ServerProcess, run_tpy


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("imported")
    models = home / "models"
    (home / "store").mkdir()
    torchserve.write_store(home / "store")
    mlserver.write_source(home / "source")
    for source in ("store", "source"):
        assert run_tpy("import", str(home / source), "--to", str(models), "--trust").code == 0
    return models


@pytest.fixture(scope="module")
def triton(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = find_peers().triton
    if found is None:
        pytest.skip("NVIDIA's Triton is not installed")
    with running(TritonPlan(triton=found, repository=repository), tmp_path_factory.mktemp("log") / "triton.log") as server:
        yield server


@pytest.fixture(scope="module")
def tpy(repository: Path) -> Iterator[ServerProcess]:
    with ServerProcess(repositories=[repository]) as server:
        yield server


def texts(name: str, *rows: list[str]) -> dict[str, Any]:
    return mlserver.rows(name, "BYTES", *rows)


def numbers(first: float) -> list[dict[str, Any]]:
    return [mlserver.rows("a", "FP32", [first, 2, 3], [0, 0, 0]), mlserver.rows("b", "FP32", [2, 2, 2], [2, 2, 2])]


def answer(address: str, model: str, inputs: list[dict[str, Any]]) -> tuple[int, object]:
    """The status, and the outputs, by name, or the error. An ensemble has its outputs in any order there."""
    body = json.dumps({"inputs": inputs}).encode()
    try:
        with urllib.request.urlopen(f"http://{address}/v2/models/{model}/infer", body, timeout=60) as found:
            outputs = json.loads(found.read())["outputs"]
            return found.status, sorted(outputs, key=lambda each: str(each["name"]))
    except HTTPError as error:
        return error.code, json.loads(error.read())["error"]


JSON = texts("headers", ['{"content-type": "application/json"}'])


@pytest.mark.parametrize(
    ("model", "inputs", "status"),
    [
        ("numbers", numbers(1), 200),
        ("numbers", numbers(-1), 400),
        ("numbers", numbers(-2), 500),
        ("old", [mlserver.rows("x", "INT64", [1, 2])], 200),
        ("old/versions/1", [mlserver.rows("x", "INT64", [1, 2])], 200),
        ("classy", [texts("body", ["[1, 2, 3]"]), JSON], 200),
        ("classy/versions/1", [texts("body", ["[1, 2, 3]"]), JSON], 200),
        ("classy", [texts("body", ["abc"], ["teapot"])], 200),
        ("classy", [texts("body", ["refuse"])], 200),
        ("classy", [texts("body", ["teapot"])], 200),
        ("classy", [texts("body", ["fail"])], 503),
        ("function", [texts("body", ["four"])], 200),
        ("tour", [texts("body", ["four"]), JSON], 200),
        ("tour", [texts("body", ["refuse"]), JSON], 503),
        ("short", [texts("body", ["1"])], 503),
    ],
)
def test_the_answers_are_the_same(
    tpy: ServerProcess, triton: Server, model: str, inputs: list[dict[str, Any]], status: int
) -> None:
    ours = answer(tpy.http, model, inputs)
    assert answer(f"127.0.0.1:{triton.ports.http}", model, inputs) == ours
    assert ours[0] == status
