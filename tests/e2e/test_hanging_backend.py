"""A backend that hangs while it is imported or closed keeps the server from neither serving nor ending."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tritonclient.http import InferenceServerClient

from tests.pace import with_patience

from .gated import GatedModel, asking, metric
from .repositories import ModelFolder
from .server import ServerProcess
from .waiting import wait_until

_EXIT_TIMEOUT_S = 2

_IMPORT = """
import time
time.sleep(1000)
"""

_CLOSE = """
import time
from tests.pace import with_patience
from tpy.errors import Internal
from tpy_data.backends.identity.backend import IdentityBackend

class Hanging(IdentityBackend):
    def close(self):
        time.sleep(1000)

def create(settings):
    return Hanging(settings.name)
"""


@pytest.mark.parametrize(
    ("code", "begun", "ended", "said"),
    [
        (_IMPORT, "loading: m:1", 0, "not waiting for models that are still loading: m:1"),
        (_CLOSE, "Started Metrics Service", 1, "Exit timeout expired"),
    ],
)
def test_it_does_not_hold_up_the_end(tmp_path: Path, code: str, begun: str, ended: int, said: str) -> None:
    installed = tmp_path / "installed"
    described = installed / "tpy_hanging-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: tpy-hanging\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[tpy.backends]\nhanging = tpy_hanging:create\n")
    (installed / "tpy_hanging.py").write_text(code)
    repository = tmp_path / "repository"
    folder = ModelFolder(repository, "m").identity()
    folder.config((folder.path / "config.pbtxt").read_text().replace('"identity"', '"hanging"'))
    server = ServerProcess(
        "--model-control-mode=poll",
        f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
        repositories=[repository],
        environment={"PYTHONPATH": os.pathsep.join((str(installed), os.environ.get("PYTHONPATH", "")))},
    )
    server.start()
    server.wait_log(begun)
    began_s = time.monotonic()
    assert server.stop() == ended, server.log
    assert said in server.log
    assert time.monotonic() - began_s < with_patience(_EXIT_TIMEOUT_S + 20)


def test_a_model_that_hangs_says_so_where_it_was_asked_to(repository: Path) -> None:
    """It is READY all the while, and answers in the end; another model without the parameter stays ready."""
    patient, strict = GatedModel(repository, "patient"), GatedModel(repository, "strict")
    config = repository / "strict" / "config.pbtxt"
    limit = 'parameters { key: "TPY_NOT_READY_AFTER_SECONDS" value { string_value: "0.5" } }\n'
    config.write_text(config.read_text() + limit)
    with (
        ServerProcess(repositories=[repository]) as server,
        InferenceServerClient(server.http) as client,
        asking(server, "patient") as patients,
        asking(server, "strict") as stricts,
    ):
        asked = patients.ask("a", 1), stricts.ask("a", 2)
        for model in (patient, strict):
            model.wait_executing("a")
        wait_until(lambda: not client.is_model_ready("strict"))
        assert client.is_model_ready("patient")
        assert client.is_server_ready()
        assert metric(server, 'tpy_model_long_execution_seconds{model="strict",version="1"}') >= 0.5
        for model in (patient, strict):
            model.open_gate("a")
        assert [answer.result() for answer in asked] == [1, 2]
        wait_until(lambda: client.is_model_ready("strict"))
        assert metric(server, 'tpy_model_long_execution_seconds{model="strict",version="1"}') == 0
