"""Paths, names and texts that lead out of where they belong: to other files, into a shell, into the log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.e2e.waiting import wait_until
from tests.security.attacker import Attacker
from tpy._proto import message_class

from .calls import GOOD, IO, Refusal, call, load_file, refused

OUTSIDE = "/tmp/tpy-cve-written"
SECRET = "not to be told"
"""In secret.txt beside the repository."""


@pytest.fixture(autouse=True)
def untouched(attacker: Attacker) -> Iterator[None]:
    """No file is written, in the repository, beside it or elsewhere."""
    before = {path: path.read_bytes() for path in attacker.home.rglob("*") if path.is_file()}
    yield
    assert {path: path.read_bytes() for path in attacker.home.rglob("*") if path.is_file()} == before
    assert not list(Path("/tmp").glob("tpy-cve-written*"))


def _load_message(name: str, path: str) -> object:
    request = message_class("inference.RepositoryModelLoadRequest")(model_name=name)
    request.parameters["config"].string_param = json.dumps({"backend": "identity"})
    request.parameters[f"file:{path}"].bytes_param = b"taken"
    return request


def test_cve_2023_31036(attacker: Attacker) -> None:
    """23, relative path traversal: the files of a load call. Each path must stay in the model's folder."""
    for path in ("../x", "../../secret.txt", "1/../../x", "1/../../../secret.txt", "1/..", ".."):
        assert load_file(attacker, path) == 400, path


def test_cve_2026_24209(attacker: Attacker) -> None:
    """22, path traversal: the files of a load call by other spellings of a path."""
    for path in (OUTSIDE, "//tmp/tpy-cve-written", "./x", "1/./../../x", "", "/", "1/", "1/x\0y", "1//../../x"):
        assert load_file(attacker, path) == 400, path


def test_cve_2026_24208(attacker: Attacker) -> None:
    """22, path traversal: the same over gRPC."""
    for path in ("../x", "1/../../../secret.txt", OUTSIDE, "1/x\0y"):
        assert refused(attacker, "RepositoryModelLoad", _load_message("intruder", path)).code is grpc.StatusCode.INVALID_ARGUMENT


def test_cve_2026_47627(attacker: Attacker) -> None:
    """22, path traversal: the name of a model in a path of the API, disguised."""
    for name in ("..%2f..%2fsecret.txt", "%2e%2e", "..%5c..", "affine%2f..%2f..", "%252e%252e%252f", "%c0%ae%c0%ae"):
        for method, path in (("POST", f"/v2/repository/models/{name}/load"), ("GET", f"/v2/models/{name}")):
            answer = attacker.ask(method, path, b"{}" if method == "POST" else b"")
            assert answer.status in (400, 404, 500), (name, answer)  # 500: Triton's for a load call of a model that is not there
            assert SECRET not in answer.error


def _refuse_configuration(attacker: Attacker, more: dict[str, Any]) -> None:
    """Have `bait` loaded with a configuration that would be right without this."""
    config = {"backend": "onnxruntime", "max_batch_size": 8, **IO, **more}
    answer = attacker.load("bait", {"config": json.dumps(config)})
    assert answer.status in (400, 500), answer
    assert re.search("must (stay|be) inside", answer.error), answer


def test_cve_2026_47630(attacker: Attacker) -> None:
    """36, absolute path traversal: the model file that a configuration names."""
    _refuse_configuration(attacker, {"default_model_filename": "/etc/passwd"})


def test_cve_2026_47606(attacker: Attacker) -> None:
    """36, absolute path traversal: the labels that a configuration names."""
    _refuse_configuration(attacker, {"output": [{**IO["output"][0], "label_filename": "/etc/passwd"}]})


def test_cve_2026_47487(attacker: Attacker) -> None:
    """22, path traversal: the name of a model in the MLflow plug-in (tests/unit/importing). Its neighbour is the name in a load
    call, which makes a folder for the files that come along."""
    for name in ("../x", "..", "a/b", "/tmp/tpy-cve-written", "x\0y", ".", ""):
        code = refused(attacker, "RepositoryModelLoad", _load_message(name, "1/x")).code
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INTERNAL), name


def test_cve_2026_24147(attacker: Attacker) -> None:
    """22, path traversal: an uploaded configuration has a file read whose content is told by an error text."""
    warm_up = {
        "name": "w",
        "batch_size": 1,
        "inputs": {"INPUT": {"data_type": "TYPE_FP32", "dims": [3], "input_data_file": "../../../secret.txt"}},
    }
    labels = [{**IO["output"][0], "label_filename": "../../secret.txt"}]
    for more in ({"model_warmup": [warm_up]}, {"default_model_filename": "../../secret.txt"}, {"output": labels}):
        _refuse_configuration(attacker, more)


def test_cve_2024_0087(attacker: Attacker) -> None:
    """73, a file name controlled from outside: the log file."""
    for name in (OUTSIDE, "../../x", ""):
        answer = attacker.ask("POST", "/v2/logging", json.dumps({"log_file": name}).encode())
        assert answer.status in (400, 501)
    settings = message_class("inference.LogSettingsRequest")()
    settings.settings["log_file"].string_param = OUTSIDE
    assert refused(attacker, "LogSettings", settings).code is grpc.StatusCode.UNIMPLEMENTED


def test_cve_2024_0100(attacker: Attacker) -> None:
    """73, a file name controlled from outside: the trace file."""
    for path in ("/v2/trace/setting", "/v2/models/affine/trace/setting"):
        assert attacker.ask("POST", path, json.dumps({"trace_file": OUTSIDE}).encode()).status == 501
    settings = message_class("inference.TraceSettingRequest")()
    settings.settings["trace_file"].value.append(OUTSIDE)
    assert refused(attacker, "TraceSetting", settings).code is grpc.StatusCode.UNIMPLEMENTED


def test_cve_2025_23316(attacker: Attacker) -> None:
    """78, command injection: the name of a Python model, which a shell sees when its worker is started. No shell is used."""
    code = b"class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    for text in (
        f"x;touch {OUTSIDE}",
        f"$(touch${{IFS}}{OUTSIDE})",
        f"`touch {OUTSIDE}`",
        f"x|touch {OUTSIDE}",
        f"x\ntouch {OUTSIDE}",
    ):
        for name in (text, text.replace("/", "\u2215")):  # a name without '/' is one of a folder
            request = message_class("inference.RepositoryModelLoadRequest")(model_name=name)
            request.parameters["config"].string_param = json.dumps({"backend": "python", **IO})
            request.parameters["file:1/model.py"].bytes_param = code
            found = call(attacker, "RepositoryModelLoad", request)
            assert not isinstance(found, Refusal) or found.code is not grpc.StatusCode.UNKNOWN, found
            call(attacker, "RepositoryModelUnload", message_class("inference.RepositoryModelUnloadRequest")(model_name=name))


def test_cve_2024_0095(attacker: Attacker) -> None:
    """117, forged log entries: line ends and escapes in what a client sends."""
    begin = len(attacker.server.log)
    attacker.ask("POST", "/v2/logging", b'{"log_verbose_level":9}')
    try:
        attacker.infer({"id": '\r\nE1121 00:00:00.000000 1 server.py:1] "forged"\x1b[2J', **GOOD})
        attacker.ask("GET", "/v2/models/x%0aE1121%20forged%1b")
    finally:
        attacker.ask("POST", "/v2/logging", b'{"log_verbose_level":0}')
    wait_until(lambda: "forged" in attacker.server.log[begin:])
    said = attacker.server.log[begin:]
    assert "\x1b" not in said
    assert not any(line.startswith("E1121") for line in said.splitlines())
