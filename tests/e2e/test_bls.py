"""Python models that call other models, in a running server: circles, updates, gone clients, a stop in the middle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from .server import ServerProcess
from .waiting import wait_until

CALLER = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

def call(name, text):
    return pb_utils.InferenceRequest(
        model_name=name, requested_output_names=["SAID"], inputs=[pb_utils.Tensor("DO", np.array([text.encode()], np.object_))]
    )

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        said = request.inputs()[0].as_numpy().reshape(-1)[0].decode()
        head, _, rest = said.partition(" ")
        if head == "call":
            name, _, rest = rest.partition(" ")
            response = call(name, rest).exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            said = pb_utils.get_output_tensor_by_name(response, "SAID").as_numpy().reshape(-1)[0].decode()
        elif head == "wait":
            while not request.is_cancelled() and pb_utils.is_model_ready("gate"):
                time.sleep(0.005)
        elif head == "unload":
            pb_utils.unload_model(rest)
        elif head == "load":
            pb_utils.load_model(rest)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np.array([said.encode()], np.object_))])
"""

_CONFIG = """
backend: "python"
input [ { name: "DO" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: %d } ]
%s
"""

_ENSEMBLE = """
platform: "ensemble"
input [ { name: "DO" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step [
  { model_name: "c" model_version: -1 input_map { key: "DO" value: "DO" } output_map { key: "SAID" value: "MIDDLE" } },
  { model_name: "a" model_version: -1 input_map { key: "DO" value: "MIDDLE" } output_map { key: "SAID" value: "SAID" } }
] }
"""

_THREAD = 'parameters { key: "TPY_PYTHON_ISOLATION" value { string_value: "thread" } }'

MODELS = {"a": 1, "b": 1, "c": 1, "two": 2, "gate": 1, "spare": 1}


@pytest.fixture(scope="module", params=["process", "thread"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository: Path = tmp_path_factory.mktemp("repository")
    for name, count in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(CALLER)
        (repository / name / "config.pbtxt").write_text(_CONFIG % (count, _THREAD if request.param == "thread" else ""))
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(_ENSEMBLE)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--audit-log=-")
    with ServerProcess(*flags, repositories=[repository]) as server:
        yield server


def infer(server: ServerProcess, model: str, text: str) -> str:
    """The model's text. Raises InferenceServerException."""
    client = httpclient.InferenceServerClient(server.http, network_timeout=30, connection_timeout=30)
    try:
        given = httpclient.InferInput("DO", [1], "BYTES")
        given.set_data_from_numpy(np.array([text.encode()], np.object_))
        said: Any = client.infer(model, [given]).as_numpy("SAID")
        return str(said[0].decode())
    finally:
        client.close()


@pytest.mark.parametrize(
    ("model", "text", "circle"),
    [
        ("a", "call a x", "'a' -> 'a'"),
        ("a", "call b call a x", "'b' -> 'a' -> 'b'"),
        ("a", "call b call c call a x", "'c' -> 'a' -> 'b' -> 'c'"),
        ("b", "call a call a x", "'a' -> 'a'"),
        ("two", "call two call two x", "'two' -> 'two'"),
        ("a", "call ensemble x", "'a' -> 'a'"),
        ("c", "call ensemble x", "'c' -> 'c'"),
    ],
)
def test_a_circle_is_an_error_that_names_it(server: ServerProcess, model: str, text: str, circle: str) -> None:
    with pytest.raises(InferenceServerException, match="models wait for each other in a circle") as caught:
        infer(server, model, text)
    assert circle in str(caught.value)
    assert infer(server, model, "fine") == "fine"


def test_calls_that_are_no_circle(server: ServerProcess) -> None:
    assert infer(server, "two", "call two x") == "x"
    assert infer(server, "a", "call b call c x") == "x"
    assert infer(server, "b", "call ensemble x") == "x"


def test_two_that_take_each_others_instances(server: ServerProcess) -> None:
    """Each of two requests has one of the two instances and wants another one: one is told no, or was quick enough."""
    said: list[str] = []

    def ask() -> None:
        try:
            said.append(infer(server, "two", "call two x"))
        except InferenceServerException as error:
            said.append("refused" if "in a circle ('two' -> 'two')" in str(error) else str(error))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(said) == 6
    assert set(said) <= {"x", "refused"}


def test_calls_are_counted_with_the_called_model(server: ServerProcess) -> None:
    client = httpclient.InferenceServerClient(server.http)

    def count() -> int:
        return int(client.get_inference_statistics("b")["model_stats"][0]["inference_stats"]["success"]["count"])

    before = count()
    infer(server, "a", "call b x")
    infer(server, "a", "call b x")
    assert count() == before + 2
    client.close()


def test_a_caller_is_unloaded_while_it_waits(server: ServerProcess) -> None:
    said: list[str] = []
    client = httpclient.InferenceServerClient(server.http)
    caller = threading.Thread(target=lambda: said.append(infer(server, "spare", "call c wait")))
    caller.start()
    wait_until(lambda: bool(client.is_model_ready("gate")) and _pending(client, "c"))
    infer(server, "a", "unload spare")
    assert not client.is_model_ready("spare")
    infer(server, "a", "unload gate")  # ends the wait
    caller.join(30)
    assert said == ["wait"]
    infer(server, "a", "load gate")
    infer(server, "a", "load spare")
    assert infer(server, "spare", "call a x") == "x"
    client.close()


def test_a_model_loads_itself_anew(server: ServerProcess) -> None:
    assert infer(server, "a", "load a") == "load a"
    assert infer(server, "a", "x") == "x"


def test_a_called_model_that_is_unloaded(server: ServerProcess) -> None:
    infer(server, "a", "unload spare")
    with pytest.raises(InferenceServerException, match="Model 'spare' is not ready"):
        infer(server, "a", "call spare x")
    infer(server, "a", "load spare")
    for action in ("unload", "load"):
        server.wait_log(rf'(?m)^{{"audit":"done",.*"action":"{action}","model":"spare","protocol":"model",.*"result":"OK"')


def _pending(client: httpclient.InferenceServerClient, model: str) -> bool:
    """Returns True if the model executes something: then it does not answer the next request at once."""
    probe = httpclient.InferenceServerClient(client._parsed_url.hostname + f":{client._parsed_url.port}", network_timeout=0.3)
    given = httpclient.InferInput("DO", [1], "BYTES")
    given.set_data_from_numpy(np.array([b"x"], np.object_))
    try:
        probe.infer(model, [given])
    except Exception:
        return True
    finally:
        probe.close()
    return False
