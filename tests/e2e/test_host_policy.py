"""--host-policy: workers and threads of instances are bound to the cores that their policy names."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tritonclient.http import InferenceServerClient

from .repositories import ModelFolder, parameter
from .server import ServerProcess, run_tpy

CONFIG = """
backend: "python"
output [ { name: "CORES" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""

MODEL = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        cores = np.array(sorted(os.sched_getaffinity(0)), np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("CORES", cores)]) for _ in requests]
"""

GROUP = "instance_group [ { kind: KIND_CPU count: 1 %s } ]\n"


def test_instances_run_on_the_cores_of_their_policy(repository: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    first, last = cores[0], cores[-1]
    in_thread = parameter("TPY_PYTHON_ISOLATION", "thread")
    ModelFolder(repository, "default").config(CONFIG + GROUP % "").python(MODEL)
    ModelFolder(repository, "named").config(CONFIG + GROUP % 'host_policy: "mine"').python(MODEL)
    ModelFolder(repository, "thread").config(CONFIG + GROUP % 'host_policy: "mine"' + in_thread).python(MODEL)
    ModelFolder(repository, "unknown").config(CONFIG + GROUP % 'host_policy: "nobody"').python(MODEL)
    policies = (f"--host-policy=cpu,cpu-cores={first}-{first}", f"--host-policy=mine,cpu-cores={last}-{last}")
    with ServerProcess(*policies, repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        seen = {name: client.infer(name, []).as_numpy("CORES").tolist() for name in ("default", "named", "thread", "unknown")}
    assert seen == {"default": [first], "named": [last], "thread": [last], "unknown": cores}


def test_a_model_whose_cores_are_not_there_does_not_load(repository: Path) -> None:
    ModelFolder(repository, "bound").identity(GROUP % 'host_policy: "far"')
    ModelFolder(repository, "free").identity(GROUP % "")
    flags = ("--host-policy=far,cpu-cores=1023-1023", "--exit-on-error=false", "--strict-readiness=false")
    with ServerProcess(*flags, repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        assert client.is_model_ready("free")
        index = {entry["name"]: entry for entry in client.get_model_repository_index()}
    assert index["bound"]["reason"] == "Internal: Unable to set NUMA thread affinity: Invalid argument"


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("cpu,cpu-cores=1", r"host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'\. Got 1"),
        ("cpu,numa=1", "Unsupported host policy setting 'numa' is specified, supported settings are 'numa-node', 'cpu-cores'"),
        ("cpu-cores=0-1", r"--host-policy option format is '<policy name>,<setting>=<value>'\. Got cpu-cores=0-1"),
    ],
)
def test_a_wrong_policy_ends_the_start(repository: Path, flag: str, text: str) -> None:
    outcome = run_tpy("serve", f"--model-repository={repository}", f"--host-policy={flag}")
    assert outcome.code == 1
    assert re.search(text, outcome.err.splitlines()[-1])
