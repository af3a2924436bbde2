"""Traces of a real `tpy serve`, with the stock clients: settings over HTTP and gRPC, and the files as Triton writes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
from tritonclient.utils import InferenceServerException

from .repositories import ModelFolder
from .server import ServerProcess
from .waiting import wait_until

TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
STEP = (
    '{ model_name: "floats" model_version: -1 input_map { key: "INPUT0" value: "%s" } output_map { key: "OUTPUT0" value: "%s" } }'
)
ENSEMBLE = f'platform: "ensemble"{TENSORS}ensemble_scheduling {{ step [ {STEP % ("INPUT0", "x")}, {STEP % ("x", "OUTPUT0")} ] }}'

# In the order of time. Triton 2.51 writes the same, some of them later than they were.
MODEL = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
HTTP = ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END", "INFER_RESPONSE_COMPLETE"]
GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END", "INFER_RESPONSE_COMPLETE"]


CALLS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            asked = dict(model_name="floats", requested_output_names=["OUTPUT0"], inputs=request.inputs())
            pb_utils.InferenceRequest(**asked, request_id="without").exec()
            answer = pb_utils.InferenceRequest(**asked, request_id="with", trace=request.trace()).exec()
            answers.append(pb_utils.InferenceResponse(answer.output_tensors()))
        return answers
"""


class Traces:
    """The traces of a file, put together by their ids, as Triton's `trace_summary.py` does it."""

    def __init__(self, path: Path) -> None:
        self.by_id: dict[int, dict[str, Any]] = {}
        for row in json.loads(path.read_text()):
            trace = self.by_id.setdefault(row["id"], {"times": {}, "tensors": []})
            trace.update({key: row[key] for key in row.keys() - {"timestamps", "tensor", "activity"}})
            trace["times"].update({each["name"]: each["ns"] for each in row.get("timestamps", ())})
            trace["tensors"] += [(row["activity"], row["tensor"])] if "activity" in row else []

    def of(self, request_id: str) -> dict[str, Any]:
        (found,) = [each for each in self.by_id.values() if each.get("request_id") == request_id and "parent_id" not in each]
        return found


class Traced:
    """A server that may trace, and its clients."""

    def __init__(self, server: ServerProcess, file: Path) -> None:
        self.server = server
        self.file = file
        self.http = tritonclient.http.InferenceServerClient(server.http)
        self.grpc = tritonclient.grpc.InferenceServerClient(server.grpc)

    def ask(self, client: Any, model: str, request_id: str = "") -> None:
        kind = tritonclient.http if client is self.http else tritonclient.grpc
        tensor = kind.InferInput("INPUT0", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.array([[1, 2.5]], np.float32))
        client.infer(model, [tensor], request_id=request_id)

    def numbered(self, number: int) -> Path:
        path = self.file.with_name(f"{self.file.name}.{number}")
        wait_until(lambda: path.exists() and path.read_bytes().endswith(b"]"))
        return path


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traces")
    repository = folder / "models"
    ModelFolder(repository, "floats").identity().config(f'backend: "identity"\nmax_batch_size: 8{TENSORS}')
    ModelFolder(repository, "twice").identity().config(f"max_batch_size: 8 {ENSEMBLE}")
    ModelFolder(repository, "calls").python(CALLS).config(f'backend: "python"\nmax_batch_size: 8{TENSORS}')
    with ServerProcess("--trace-config", f"triton,file={folder / 'trace.json'}", repositories=[repository]) as server:
        yield Traced(server, folder / "trace.json")


@pytest.fixture(autouse=True)
def _off_again(traced: Traced) -> Iterator[None]:
    yield
    nothing = {"trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None}
    for model in ("", "floats", "twice"):
        traced.http.update_trace_settings(model, nothing)


def test_settings_are_got_updated_and_cleared(traced: Traced) -> None:
    default = {"trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0"}
    fixed = {"trace_file": str(traced.file), "trace_mode": "triton"}
    http, grpc = traced.http, traced.grpc
    assert http.get_trace_settings() == http.update_trace_settings(settings={}) == {**default, **fixed}
    updated = grpc.update_trace_settings("floats", {"trace_rate": "9", "trace_level": ["TIMESTAMPS", "TENSORS"]}, as_json=True)
    assert updated["settings"]["trace_level"]["value"] == ["TIMESTAMPS", "TENSORS"]
    own = {**default, **fixed, "trace_rate": "9", "trace_level": ["TIMESTAMPS", "TENSORS"]}
    assert http.get_trace_settings("floats") == own
    assert http.update_trace_settings(settings={"log_frequency": "3"}) == {**default, **fixed, "log_frequency": "3"}
    assert http.get_trace_settings("floats") == {**own, "log_frequency": "3"}, "what it was not given is the server's"
    assert grpc.update_trace_settings("floats", {"trace_rate": None}).settings["trace_rate"].value == ["1000"]
    for client, code in ((http, "400"), (grpc, "StatusCode.INVALID_ARGUMENT")):
        with pytest.raises(InferenceServerException) as caught:
            client.update_trace_settings(settings={"trace_rate": "x"})
        assert (caught.value.status(), caught.value.message()) == (code, "Unable to parse 'trace_rate', got: x")


async def _over_asyncio(address: str) -> list[str]:
    async with tritonclient.grpc.aio.InferenceServerClient(address) as client:
        await client.update_trace_settings("floats", {"trace_rate": "7"})
        return list((await client.get_trace_settings("floats")).settings["trace_rate"].value)


def test_settings_over_asyncio(traced: Traced) -> None:
    assert asyncio.run(_over_asyncio(traced.server.grpc)) == ["7"]


def test_files_are_those_of_triton(traced: Traced) -> None:
    traced.http.update_trace_settings(settings={"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1", "trace_count": "3"})
    traced.ask(traced.http, "floats", "h")
    traced.ask(traced.grpc, "floats", "g")
    traced.ask(traced.http, "twice", "e")
    traced.ask(traced.http, "floats", "late")
    assert traced.http.get_trace_settings()["trace_count"] == "0", "the traces that are still to be taken"
    traces = Traces(traced.numbered(0))
    for request_id, frontend in (("h", HTTP), ("g", GRPC)):
        trace = traces.of(request_id)
        times = trace["times"]
        assert list(times) == sorted(times, key=times.__getitem__), "and in the order of time"
        assert set(times) == {*MODEL, "REQUEST_END", *frontend}
        assert (trace["model_name"], trace["model_version"]) == ("floats", 1)
        data = {"data": "1,2.5", "shape": "1,2", "dtype": "FP32"}
        assert trace["tensors"] == [
            ("TENSOR_QUEUE_INPUT", {"name": "INPUT0", **data}),
            ("TENSOR_BACKEND_OUTPUT", {"name": "OUTPUT0", **data}),
        ]
    whole = traces.of("e")
    assert set(whole["times"]) == {"REQUEST_START", "QUEUE_START", "REQUEST_END", *HTTP}
    steps = [each for each in traces.by_id.values() if each.get("parent_id") == whole["id"]]
    assert [(step["model_name"], set(step["times"])) for step in steps] == [("floats", {*MODEL, "REQUEST_END"})] * 2
    assert len(traces.by_id) == 5


def test_calls_that_were_given_the_trace_are_parts_of_it(traced: Traced) -> None:
    """Triton does not sample the others either."""
    former = len(list(traced.file.parent.glob("trace.json.*")))
    traced.http.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "1"})
    traced.ask(traced.grpc, "calls", "outer")
    traces = Traces(traced.numbered(former))
    outer = traces.of("outer")
    others = [(each["request_id"], each["parent_id"]) for each in traces.by_id.values() if each is not outer]
    assert others == [("with", outer["id"])]


def test_files_take_turns(traced: Traced) -> None:
    former = len(list(traced.file.parent.glob("trace.json.*")))
    traced.http.update_trace_settings("floats", {"trace_level": ["TIMESTAMPS"], "trace_rate": "2", "log_frequency": "2"})
    for number in range(1, 11):
        traced.ask(traced.http, "floats", str(number))
    found = [Traces(traced.numbered(former + number)) for number in (0, 1)]
    assert [[each["request_id"] for each in traces.by_id.values()] for traces in found] == [["2", "4"], ["6", "8"]]
    traced.http.update_trace_settings("floats", {"trace_level": ["OFF"]})
    rest = Traces(traced.numbered(former + 2))
    assert rest.of("10")["times"]


def test_one_file_grows(traced: Traced) -> None:
    """It is complete after each trace; Triton writes it when the settings change."""
    traced.http.update_trace_settings("floats", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    for request_id in ("a", "b"):
        traced.ask(traced.grpc, "floats", request_id)
        wait_until(lambda: traced.file.exists() and request_id in traced.file.read_text())  # noqa: B023
    assert Traces(traced.file).of("a")["times"]


def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "none" / "trace.json"
    flags = ("--trace-config", f"triton,file={file}", "--trace-config", "level=TIMESTAMPS")
    with ServerProcess(*flags, repositories=[tmp_path], expect_exit=1) as server:
        server.wait_end()
    assert f"--trace-config triton,file: cannot write '{file}': No such file or directory" in server.log
