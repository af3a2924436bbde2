"""Python models see the same metrics, response senders and traces as in the real server, in a process and in a thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import ServerProcess

from .python_api_record import CASES, ask, build

RECORDED: list[list[Any]] = json.loads((Path(__file__).parent / "transcripts" / "python_api.json").read_text())

_THREAD = 'parameters { key: "TPY_PYTHON_ISOLATION" value { string_value: "thread" } }\n'


def _alike(said: Any) -> Any:
    """Without what names an implementation: modules of classes."""
    return json.loads(
        json.dumps(said)
        .replace("c_python_backend_utils.", "")
        .replace("tpy_data.backends.python.worker.pb_utils.response.", "")
        .replace("tpy_python_worker.pb_utils.response.", "")
    )


@pytest.mark.parametrize("more", ["", _THREAD], ids=["process", "thread"])
def test_models_see_what_the_real_server_shows(tmp_path: Path, more: str) -> None:
    build(tmp_path, more=more)
    with ServerProcess(repositories=[tmp_path]) as server:
        for case, (recorded, expected) in zip(CASES, RECORDED, strict=True):
            assert case == recorded
            assert _alike(ask(server.http, server.metrics, case)) == _alike(expected), case
