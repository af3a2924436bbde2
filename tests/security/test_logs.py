"""No request writes a line of the log (CVE-2024-0095), in any format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import grpc
import pytest

from tpy._proto import message_class

from .attacker import Attacker, tensor

FORGED = (
    '\r\nE1121 00:00:00.000000 1 server.py:1] "forged"\n\x1b[2J\x1b]0;forged\x07\x7f\x85\u2028\u2029\u009b31m\u202eforged\ud7ff'
)
_LINES = {
    "default": re.compile(r'[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \w+\.py:\d+\] "(?:[^"\\]|\\.)*"'),
    "ISO8601": re.compile(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [IWEF] \d+ \w+\.py:\d+\] "(?:[^"\\]|\\.)*"'),
    "plain": re.compile(r"\d\d:\d\d:\d\d (?:debug|info|WARNING|ERROR) .*|        \| .*"),
}
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(params=["default", "ISO8601", "json", "plain"])
def log_format(request: pytest.FixtureRequest, attacker: Attacker) -> Iterator[str]:
    """The most is logged, in this format."""
    change = {"log_format": request.param, "log_verbose_level": 9}
    assert attacker.ask("POST", "/v2/logging", json.dumps(change).encode()).status == 200
    yield request.param
    back = {"log_format": "default", "log_verbose_level": 0}
    assert attacker.ask("POST", "/v2/logging", json.dumps(back).encode()).status == 200


def _attack(attacker: Attacker) -> None:
    """The forged text wherever a text can be."""
    quoted = "".join(f"%{byte:02x}" for byte in FORGED.encode("utf-8", "replace"))
    for path in (f"/v2/models/{quoted}/infer", f"/v2/models/{quoted}", f"/v2/repository/models/{quoted}/load", f"/{quoted}"):
        attacker.ask("POST", path, b"{}")
    text = FORGED.encode("utf-8", "replace").decode()
    document = tensor([1.0, 2.0, 3.0])
    attacker.infer({"id": text, "inputs": [document]})
    attacker.infer({"id": text, "inputs": [document, document]})
    attacker.infer({"id": text, "inputs": [{**document, "name": text}], "outputs": [{"name": text}]})
    attacker.infer({"id": text, "inputs": [document], "parameters": {text: text}}, model="copy")
    attacker.infer({"id": text, "inputs": [document], "parameters": {"sequence_id": text[:100]}}, model="sum")
    attacker.load("bait", {"config": json.dumps({"backend": text, "name": text})})
    attacker.load("bait", {"config": text, f"file:1/{text}": "AA=="})
    attacker.ask("POST", "/v2/logging", json.dumps({"log_format": text}).encode())
    attacker.exchange(b"GET /v2 HTTP/1.1\r\nHost: x\r\nX-A: \x1b[2Jforged\x85\r\nUser-Agent: \x1b]0;forged\x07\r\n\r\n")
    attacker.exchange(b"FORGED\x1b[2J /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
    attacker.exchange("GET /forged\x1b[2J\u2028 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    load = message_class("inference.RepositoryModelLoadRequest")(model_name=text, repository_name=text)
    infer = message_class("inference.ModelInferRequest")(model_name=text, id=text)
    with grpc.insecure_channel(attacker.server.grpc) as channel:
        for method, message in (("RepositoryModelLoad", load), ("ModelInfer", infer)):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(message.SerializeToString(), timeout=20)
        with pytest.raises(grpc.RpcError):
            channel.unary_unary("/forged%0aforged/\x7f")(b"", timeout=20)


def test_every_line_is_ours(attacker: Attacker, log_format: str) -> None:
    begin = len(attacker.server.log)
    _attack(attacker)
    lines = attacker.server.log[begin:].split("\n")
    assert any("forged" in line for line in lines)  # refused loads are logged: there is something to see
    for line in filter(None, lines):
        assert not _UNSAFE.search(line), repr(line)
        if log_format == "json":
            assert {"time", "level", "logger", "message"} <= json.loads(line).keys()
        else:
            assert _LINES[log_format].fullmatch(line), repr(line)


def test_lines_have_bounds(attacker: Attacker, log_format: str) -> None:
    begin = len(attacker.server.log)
    load = message_class("inference.RepositoryModelLoadRequest")(model_name="x" * 3_000_000)
    with grpc.insecure_channel(attacker.server.grpc) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")(load.SerializeToString(), timeout=20)
    attacker.load("bait", {"config": json.dumps({"backend": "x" * 900_000})})
    attacker.infer({"id": "x" * 3_000_000, "inputs": []})
    assert len(attacker.server.log) - begin < 200_000
