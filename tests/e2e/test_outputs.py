"""Outputs that a model does not make as its configuration says: clients that ask for one get an error, the log has a warning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.e2e.repositories import ModelFolder
from tests.e2e.server import ServerProcess

CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "Z" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
LACKS_Z = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""
MISSING = "model 'strict' made no output 'Z', which was asked for; it made 'Y'"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("repository")
    ModelFolder(repository, "strict").config(CONFIG).python(LACKS_Z)
    leaves_out = 'parameters { key: "TPY_MISSING_OUTPUTS" value { string_value: "leave_out" } }\n'
    ModelFolder(repository, "lenient").config(CONFIG + leaves_out).python(LACKS_Z)
    with ServerProcess(repositories=[repository]) as process:
        yield process


def ask(server: ServerProcess, protocol: str, model: str, *outputs: str) -> dict[str, list[float]]:
    module = tritonclient.http if protocol == "http" else tritonclient.grpc
    with module.InferenceServerClient(server.http if protocol == "http" else server.grpc) as client:
        given = module.InferInput("X", [2], "FP32")
        given.set_data_from_numpy(np.array([1, 2], np.float32))
        wanted = [module.InferRequestedOutput(name) for name in outputs] or None
        answer = client.infer(model, [given], outputs=wanted)
        return {name: found.tolist() for name in ("Y", "Z") if (found := answer.as_numpy(name)) is not None}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_output_that_was_asked_for(server: ServerProcess, protocol: str) -> None:
    with pytest.raises(Exception, match=MISSING):
        ask(server, protocol, "strict", "Y", "Z")
    assert ask(server, protocol, "strict", "Y") == ask(server, protocol, "strict") == {"Y": [1, 2]}
    assert ask(server, protocol, "lenient", "Y", "Z") == {"Y": [1, 2]}, "as Triton does"


def test_the_log_has_a_warning_for_each_model(server: ServerProcess) -> None:
    for model in ("strict", "lenient"):
        ask(server, "http", model)
        server.wait_log(f"W.*a response of model '{model}' lacks 'Z', which its configuration names")
    ask(server, "http", "strict")
    assert server.log.count("lacks 'Z'") == 2


def test_another_value_of_the_parameter_is_refused(repository: Path) -> None:
    other = 'parameters { key: "TPY_MISSING_OUTPUTS" value { string_value: "maybe" } }\n'
    ModelFolder(repository, "odd").config(CONFIG + other).python(LACKS_Z)
    with ServerProcess("--exit-on-error=false", repositories=[repository]) as process:
        process.wait_log("unexpected value 'maybe' of parameter TPY_MISSING_OUTPUTS for odd")
