"""Web pages that ask the server through a visitor's browser."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from .arena import Outcome, measured, serving

_MODEL = """
import pathlib
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        pathlib.Path({ran!r}).write_text("ran")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
_CONFIG = {"backend": "python", "input": [{"name": "I", "data_type": "TYPE_FP32", "dims": [1]}]}
_CONFIG["output"] = [{"name": "O", "data_type": "TYPE_FP32", "dims": [1]}]


def page_loads_model(folder: Path, *, rebound: bool) -> Outcome:
    """A page of another site sends a load call with a model.py, under its own name or one that was made to lead here: it does
    not run."""
    ran = folder / "ran"
    code = base64.b64encode(_MODEL.format(ran=str(ran)).encode()).decode()
    body = json.dumps({"parameters": {"config": json.dumps(_CONFIG), "file:1/model.py": code}}).encode()
    flags = ("--model-control-mode=explicit", "--load-model=*", "--management-address=127.0.0.1:0")
    with serving(folder, *flags) as arena, measured(arena) as outcome:
        management = arena.server.address("Management HTTPService") or ""
        headers = {"Content-Type": "text/plain", "Sec-Fetch-Mode": "no-cors"}
        port = management.rpartition(":")[2]
        headers |= {"Host": f"evil.example:{port}"} if rebound else {"Origin": "http://evil.example"}
        load = "/v2/repository/models/evil/load"
        status, _ = arena.ask("POST", load, body, headers=headers, address=management)
        outcome.wrong += ran.exists() or status != 403
        outcome.note(f"status {status}, its code {'ran' if ran.exists() else 'did not run'}")
    return outcome
