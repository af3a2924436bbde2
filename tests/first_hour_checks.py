"""The stumbling blocks of a first hour, tried with the real commands: `make first-hour` runs these after the README's steps.

Each check raises AssertionError where something is not so, and returns what it saw in a few words.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .e2e.server import ServerProcess, run_tpy
from .e2e.waiting import wait_until

ROOT = Path(__file__).parents[1]
DEV = ("-m", "tpy", "dev")
ENTRY_POINT = ROOT / "docs" / "examples" / "container" / "entrypoint.sh"

_TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
_HANGS = """
import threading

class TritonPythonModel:
    def initialize(self, args):
        threading.Event().wait()
"""
_SUM = """
import numpy as np

class Sum:
    def predict(self, rows):
        return np.asarray(rows).sum(axis=1)
"""
_NET = """
import torch

class Net(torch.nn.Module):
    def forward(self, first, second):
        return first - second

if __name__ == "__main__":
    samples = torch.ones(2, 3), torch.ones(2, 3)
    torch.save(Net().state_dict(), "weights.pt")
    rows = {0: torch.export.Dim("rows")}
    torch.export.save(torch.export.export(Net(), samples, dynamic_shapes=(rows, rows)), "net.pt2")
"""


def make_repository(place: Path) -> Path:
    """A model that answers what it gets, one that hangs in `initialize`, and two with a mistake each."""
    for name, config, version in (
        ("echo", 'backend: "identity" max_batch_size: 8', "1"),
        ("hangs", 'backend: "python"', "1"),
        ("misspelt", 'backend: "onnx"', "1"),
        ("misnamed", 'backend: "identity"', "v1"),
    ):
        (place / name / version).mkdir(parents=True)
        (place / name / "config.pbtxt").write_text(config + _TENSORS)
    (place / "hangs" / "1" / "model.py").write_text(_HANGS)
    return place


def ask(address: str, path: str, document: object = None, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    """The response and its body; a POST if there is a document."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET" if document is None else "POST", path, document and json.dumps(document), headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def index(server: ServerProcess) -> Mapping[str, Mapping[str, Any]]:
    """The rows of the repository index by model."""
    return {row["name"]: row for row in json.loads(ask(server.http, "/v2/repository/index", {})[1])}


def answers(server: ServerProcess, path: str, document: object) -> Any:
    """The body of an answer, which must be 200."""
    response, body = ask(server.http, path, document)
    assert response.status == 200, f"{path}: {response.status} {body!r}"
    return json.loads(body)


def opens_while_a_model_hangs(server: ServerProcess) -> str:
    """1.1: ports are open, the index says what loads, the others answer."""
    wait_until(lambda: index(server)["echo"].get("state") == "READY")
    assert index(server)["hangs"]["state"] == "LOADING", index(server)
    assert ask(server.http, "/v2/health/live")[0].status == 200
    assert ask(server.http, "/v2/health/ready")[0].status != 200
    return "a model hangs in initialize: the ports are open, and the others answer"


def takes_data_as_people_have_it(server: ServerProcess) -> str:
    """1.4: null, NaN and rows."""
    given = [[1, None, 3, 4], [5, 6, 7, 8]]
    generated = answers(server, "/v2/models/echo/generate?rows=1", {"INPUT0": given})["OUTPUT0"]
    predicted = answers(server, "/v1/models/echo:predict", {"instances": given})["predictions"]
    for rows in (generated, predicted):
        assert rows[0][1] != rows[0][1], f"null is not NaN: {rows}"
        assert [rows[0][2:], rows[1]] == [[3, 4], [5, 6, 7, 8]], rows
    return "null is NaN, and rows are rows, in generate and KServe v1"


def says_what_to_do(server: ServerProcess) -> str:
    """1.7: a backend and a version folder that are called otherwise."""
    wait_until(lambda: "reason" in index(server)["misspelt"])
    found = index(server)
    assert "Did you mean 'onnxruntime'?" in found["misspelt"]["reason"], found
    assert "v1/: rename it to 1" in found["misnamed"]["reason"], found
    loading = ask(server.http, "/v2/models/hangs/infer", {"inputs": []})[1].decode()
    assert "it is loading" in loading, loading
    return "messages say what was meant: onnxruntime for onnx, 1 for v1, it is loading"


def shows_its_page(server: ServerProcess) -> str:
    """1.2: its address is the last line, and `/` leads there."""
    page = f"http://{server.http}/page/"
    wait_until(lambda: server.log.splitlines()[-1].endswith(f"info    the page of the server: {page}"))
    response, _ = ask(server.http, "/", Accept="text/html")
    assert (response.status, response.getheader("Location")) == (308, "page/"), response.getheaders()
    assert ask(server.http, "/page/")[0].status == 200
    return "the last line of tpy dev is the page's address, and / leads there"


def measures_with_the_request_of_init(server: ServerProcess, models: Path) -> str:
    """1.6: `tpy perf` reads request.json as it is."""
    name = min(path.name for path in models.iterdir())
    data = models / name / "request.json"
    done = run_tpy("perf", "-m", name, "-u", server.http, "--input-data", str(data), "--request-count", "20", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out), done.out
    return f"tpy perf measures {name} with the request.json that tpy init wrote"


def is_called_as_triton(place: Path) -> str:
    """1.3: the image's entry point runs `tritonserver --model-repository=...`, without an image here."""
    launcher = ("sh", "-c", 'shift; exec "$0" tritonserver "$@"', str(ENTRY_POINT))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (place / "echo" / "1").mkdir(parents=True)
    (place / "echo" / "config.pbtxt").write_text('backend: "identity"' + _TENSORS)
    with ServerProcess(repositories=(place,), launcher=launcher, program=(), environment={"PATH": path}) as server:
        assert index(server)["echo"]["state"] == "READY"
    return "the image's entry point runs tritonserver --model-repository=DIRECTORY"


def makes_models(place: Path) -> str:
    """1.5: exported programs and names of arguments, where PyTorch is; a pickle that does not know how wide it is; folders."""
    (place / "sums.py").write_text(_SUM)
    _run(place, "-c", "import pickle, sums; pickle.dump(sums.Sum(), open('sums.pkl', 'wb'))")
    said = _init(place, "--from", "sums.pkl", "--as", "python", status=1)
    assert "--input X:FP32:4" in said, said
    (place / "bert").mkdir()
    (place / "bert" / "config.json").write_text("{}")
    said = _init(place, "--from", "bert", status=1)
    assert "a model of Hugging Face; tpy import bert" in said, said
    (place / "net.py").write_text(_NET)
    if importlib.util.find_spec("torch") is None:
        (place / "net.pt2").write_bytes(b"")
        assert "pip install torch" in _init(place, "--from", "net.pt2", status=1)
        return "tpy init says the next step; skipped: .pt2 and names of arguments, for PyTorch is not installed here"
    _run(place, "net.py")
    sizes = ("--input", "first:FP32:3", "--input", "second:FP32:3")
    for arguments in (("--from", "net.pt2"), ("--from", "weights.pt", "--class", "net.py:Net", *sizes)):
        said = _init(place, *arguments)
        assert "inputs: first, second; outputs: OUTPUT__0" in said, said
    return "tpy init says the next step, and makes models of .pt2 and of weights, with forward's names"


def _init(place: Path, *arguments: str, status: int = 0) -> str:
    """Run `tpy init` in a folder; what it says."""
    name = f"made{len(list((place / 'models').glob('*')))}"
    return _run(place, "-m", "tpy", "init", name, *arguments, status=status)


def _run(place: Path, *arguments: str, status: int = 0) -> str:
    done = subprocess.run([sys.executable, "-W", "ignore", *arguments], cwd=place, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == status, f"ended with {done.returncode}: {said}"
    return said


def checks(place: Path, models: Path) -> Iterator[Callable[[], str]]:
    """All of them. `place` is an empty folder; `models` what the README's reader made."""
    with ServerProcess(str(make_repository(place / "repository")), program=DEV) as server:
        for check in (opens_while_a_model_hangs, takes_data_as_people_have_it, says_what_to_do):
            yield partial(check, server)
    with ServerProcess(str(models), program=DEV) as server:
        yield partial(shows_its_page, server)
        yield partial(measures_with_the_request_of_init, server, models)
    yield partial(is_called_as_triton, place / "drop-in")
    (place / "trained").mkdir()
    yield partial(makes_models, place / "trained")
