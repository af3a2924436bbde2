"""The id of a request is in every line that the server writes about it: of calls and steps, of failures, of its duration."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from .repositories import IDENTITY_PAIR, ModelFolder, parameter
from .server import ServerProcess
from .waiting import wait_until

PYTHON = f'backend: "python"\n{IDENTITY_PAIR}'
INNER = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.002)
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        if any(tensor[0] < 0 for tensor in tensors):
            raise ValueError("negative")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor)]) for tensor in tensors]
"""
OUTER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        inner = pb_utils.InferenceRequest(
            model_name="inner", inputs=request.inputs(), requested_output_names=["OUTPUT0"], trace=request.trace()
        ).exec()
        if inner.has_error():
            return [pb_utils.InferenceResponse(error=inner.error())]
        return [pb_utils.InferenceResponse(inner.output_tensors())]
"""
STEPS = f"""
platform: "ensemble"
{IDENTITY_PAIR}
ensemble_scheduling {{ step [ {{
    model_name: "inner" model_version: -1
    input_map {{ key: "INPUT0" value: "INPUT0" }} output_map {{ key: "OUTPUT0" value: "OUTPUT0" }}
}} ] }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ids")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    for name, source in (("inner", INNER), ("outer", OUTER)):
        ModelFolder(folder / "models", name).config(PYTHON).python(source)
    ModelFolder(folder / "models", "inside").config(PYTHON + parameter("isolation", "thread")).python(INNER)
    ModelFolder(folder / "models", "steps").config(STEPS).file("1/.keep", "")
    flags = ["--log-verbose=1", "--slow-request-ms=1", f"--access-log={folder / 'access.log'}"]
    with ServerProcess(*flags, repositories=[folder / "models"]) as process:
        yield process


@pytest.mark.parametrize("value", [1, -1], ids=["answered", "failed"])
@pytest.mark.parametrize("model", ["inner", "inside", "outer", "steps"])
def test_every_line_of_a_request_has_its_id(server: ServerProcess, folder: Path, model: str, value: int) -> None:
    request_id = f"id-of-{model}-{value}"
    before = len(server.log)
    tensor = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [value]}
    body = json.dumps({"id": request_id, "inputs": [tensor]}).encode()
    try:
        urllib.request.urlopen(f"http://{server.http}/v2/models/{model}/infer", body).close()
    except HTTPError as error:
        assert value < 0
        error.close()
    wait_until(lambda: "slow request" in server.log[before:])
    lines = server.log[before:].splitlines()
    expected = ["slow request", f"model: {model}"]
    if model == "outer":
        expected.append("model: inner")
    if value < 0 and model != "outer":  # its call has no id of its own
        expected.append("execute failed")
    for part in expected:
        assert [request_id in line for line in lines if part in line] == [True], part
    wait_until(lambda: request_id in (folder / "access.log").read_text())
    rows = (folder / "access.log").read_text().splitlines()
    assert [f" http {model}/1 " in row for row in rows if f'id="{request_id}"' in row] == [True]
