"""Bytes that make no request: heads, chunks, nesting, noise, values of the wrong kind."""

from __future__ import annotations

import json
from typing import Any

import grpc

from tests.security.attacker import Attacker, tensor

from .calls import GOOD, binary, call, infer_message, refused

POST = b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: x\r\n"
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"
GROWTH_BYTES_MAX = 60_000_000


def _nested(depth: int, opening: str, closing: str) -> str:
    return opening * depth + "1" + closing * depth


def _flooded(attacker: Attacker, data: bytes) -> None:
    """It is refused, or cut off, before its time is over, and costs no memory."""
    resident = attacker.resident_bytes()
    said = attacker.flood(data, attacker.server.http)
    assert said == b"" or said.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")), said
    assert not said.startswith(b"HTTP/1.1 408 "), said
    assert attacker.resident_bytes() - resident < GROWTH_BYTES_MAX


def test_cve_2026_47477(attacker: Attacker) -> None:
    """121, stack overflow: groups within groups of protobuf, and parameters within parameters."""
    code = refused(attacker, "ModelInfer", b"\xa3\x06" * 1_000_000).code
    assert code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)
    assert (
        attacker.infer(f'{{"parameters":{_nested(100_000, chr(123) + chr(34) + "a" + chr(34) + ":", "}")}}}'.encode()).status
        == 400
    )


def test_cve_2025_23325(attacker: Attacker) -> None:
    """674, uncontrolled recursion: nested data."""
    data = _nested(100_000, "[", "]")
    document = f'{{"inputs":[{{"name":"INPUT","shape":[1,3],"datatype":"FP32","data":{data}}}]}}'
    assert attacker.infer(document.encode()).status == 400


def test_cve_2025_23317(attacker: Attacker) -> None:
    """122, heap overflow in the HTTP server: heads without end."""
    for head in (GET + b"X: " + b"x" * 5_000_000, GET + b"X" * 5_000_000, b"GET /" + b"x" * 5_000_000, b"G" * 5_000_000):
        _flooded(attacker, head)


def test_cve_2025_23311(attacker: Attacker) -> None:
    """121, stack overflow: three megabytes of chunks of a byte."""
    _flooded(attacker, POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 500_000)


def test_cve_2025_23310(attacker: Attacker) -> None:
    """121, stack overflow: chunks with extensions, and a size without end."""
    _flooded(attacker, POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1;a=b\r\nx\r\n" * 300_000)
    _flooded(attacker, POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 5_000_000)


def test_cve_2026_24175(attacker: Attacker) -> None:
    """248, an uncaught exception: a malformed header."""
    for length in ("x", "-1", "1e3", " 5 5", "\u0663", "1, 2", "0x", "9" * 400):
        assert binary(attacker, {"shape": [1, 3], "parameters": {"binary_data_size": 12}}, bytes(12), length) == 400, length
    for header in (
        "Content-Encoding: x",
        "Content-Encoding: gzip, gzip",
        "Transfer-Encoding: x",
        "Content-Length: 1",
        "Expect: x",
    ):
        answers = attacker.exchange(POST + header.encode() + b"\r\n\r\n{}")
        assert all(400 <= answer.status < 600 for answer in answers), header


def test_cve_2026_47480(attacker: Attacker) -> None:
    """248, an uncaught exception: bytes that are nothing, on each port, and metadata of any kind."""
    for noise in (b"\0" * 100, b"\xff" * 100, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 200, b"\x16\x03\x01\x02\x00\x01"):
        for address in (attacker.server.http, attacker.server.grpc, attacker.server.metrics):
            attacker.farewell(noise, address)
    for metadata in ((("grpc-timeout", "x"),), (("grpc-encoding", "x"),), (("content-type", "x"),), (("a-bin", b"\xff"),)):
        call(attacker, "ModelInfer", infer_message(), metadata=metadata)


WRONG: list[Any] = [
    None,
    [],
    "x",
    1,
    {"inputs": None},
    {"inputs": {}},
    {"inputs": [None]},
    {"inputs": [{}]},
    {"inputs": [tensor([1.0, 2.0, 3.0], name=None)]},
    {"inputs": [tensor([1.0, 2.0, 3.0], datatype=7)]},
    {"inputs": [tensor([1.0, 2.0, 3.0], shape="13")]},
    {"inputs": [tensor("abc")]},
    {"inputs": [tensor({"a": 1})]},
    {"inputs": [tensor([1.0, None, "x"])]},
    {**GOOD, "outputs": "OUTPUT"},
    {**GOOD, "outputs": [{"name": ["OUTPUT"]}]},
    {**GOOD, "parameters": []},
    {**GOOD, "parameters": {"sequence_id": {}}},
    {**GOOD, "parameters": {"priority": -1}},
    {**GOOD, "parameters": {"timeout": "x"}},
    {**GOOD, "id": []},
]


def test_cve_2026_47629(attacker: Attacker) -> None:
    """20, improper input validation: values of the wrong kind, wherever a request has one."""
    for document in WRONG:
        answer = attacker.infer(json.dumps(document).encode())
        assert answer.status == 400, document
        assert answer.error
