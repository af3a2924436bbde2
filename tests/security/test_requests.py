"""Inference requests that lie about their size, or are made to cost much."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import grpc
import numpy as np
import pytest

from tests.pace import at_pace
from tpy._proto import message_class

from .attacker import Attacker, tensor

CPU_S_MAX = 5.0
"""Of the server, for one message: what takes quadratic time takes minutes, on any machine."""

INT64_MAX = 2**63 - 1


@pytest.mark.parametrize(
    "shape",
    [
        [2**32, 2**32],
        [2**31, 2**33],
        [2**62, 4],
        [2**63, 2],
        [2**64 + 1, 3],
        [3, 2**64],
        [-1, 3],
        [-1, -3],
        [-(2**63), 1],
        [0, 2**62, 2**62],
        [1] * 1000,
        [INT64_MAX, 3],
        [1.5, 3],
        [1e300, 3],
        ["1", "3"],
        [True, 3],
        [[1], 3],
        None,
        "13",
        {},
    ],
    ids=repr,
)
def test_shapes(attacker: Attacker, shape: Any) -> None:
    """Products around 2**32, 2**63 and 2**64 (CVE-2026-24173: integer overflow)."""
    raw = bytes(12)
    assert attacker.infer({"inputs": [tensor([1.0, 2.0, 3.0], shape=shape)]}).status == 400
    head = json.dumps({"inputs": [{**tensor(None, shape=shape), "parameters": {"binary_data_size": 12}}]}).replace(
        '"data": null, ', ""
    )
    answer = attacker.ask("POST", "/v2/models/affine/infer", head.encode() + raw, f"Inference-Header-Content-Length: {len(head)}")
    assert answer.status == 400
    assert answer.error


@pytest.mark.parametrize(
    "shape", [[2**32, 2**32], [2**62, 4], [INT64_MAX, 3], [-1, 3], [-(2**63), 3], [0, 2**62, 2**62], [1] * 1000]
)
def test_shapes_over_grpc(attacker: Attacker, shape: list[int]) -> None:
    request = message_class("inference.ModelInferRequest")(model_name="affine")
    request.inputs.add(name="INPUT", datatype="FP32", shape=shape)
    request.raw_input_contents.append(bytes(12))
    with grpc.insecure_channel(attacker.server.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(request.SerializeToString(), timeout=20)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "size", [-1, 13, 11, 2**31, 2**32 + 12, 2**63, 2**64 + 12, -(2**64) + 12, 12.5, 1e300, "12", True, None, [12]], ids=repr
)
def test_sizes_of_binary_data(attacker: Attacker, size: Any) -> None:
    head = json.dumps(
        {"inputs": [{"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": size}}]}
    )
    answer = attacker.ask(
        "POST", "/v2/models/affine/infer", head.encode() + bytes(12), f"Inference-Header-Content-Length: {len(head)}"
    )
    assert answer.status == 400
    assert answer.error


@pytest.mark.parametrize("length", ["-1", "+5", "1_0", "0x10", "99999999999999999999", " 5 5", "\u0663", "1e3", ""])
def test_lengths_of_the_json_part(attacker: Attacker, length: str) -> None:
    body = json.dumps({"inputs": [tensor([1.0, 2.0, 3.0])]}).encode()
    assert attacker.ask("POST", "/v2/models/affine/infer", body, f"Inference-Header-Content-Length: {length}").status == 400


def nested(depth: int, opening: str, closing: str, inner: str = "1") -> str:
    return opening * depth + inner + closing * depth


DOCUMENTS = {
    "deep data": lambda: '{"inputs":[{"name":"INPUT","shape":[1,3],"datatype":"FP32","data":' + nested(100_000, "[", "]") + "}]}",
    "deep parameters": lambda: '{"parameters":' + nested(100_000, '{"a":', "}") + ',"inputs":[]}',
    "deep id": lambda: '{"id":' + nested(100_000, "[", "]") + "}",
    "deep outputs": lambda: '{"outputs":' + nested(1_000_000, "[", "]") + "}",
    "brackets without end": lambda: "[" * 3_000_000,
    "braces without end": lambda: '{"a":' * 500_000,
    "a number of a million digits": lambda: (
        '{"inputs":[{"name":"INPUT","shape":[' + "1" * 1_000_000 + '],"datatype":"FP32","data":[1]}]}'
    ),
    "digits as data": lambda: '{"inputs":[{"name":"INPUT","shape":[1,3],"datatype":"FP32","data":[' + "9" * 1_000_000 + "]}]}",
    "an exponent": lambda: '{"inputs":[{"name":"INPUT","shape":[1e999999999],"datatype":"FP32","data":[1]}]}',
    "many inputs": lambda: json.dumps({"inputs": [tensor([1.0, 2.0, 3.0])] * 30_000}),
    "many other inputs": lambda: json.dumps({"inputs": [{**tensor([1, 2, 3]), "name": f"I{n}"} for n in range(30_000)]}),
    "many outputs": lambda: json.dumps(
        {"inputs": [tensor([1.0, 2.0, 3.0])], "outputs": [{"name": f"O{n}"} for n in range(100_000)]}
    ),
    "one key many times": lambda: '{"inputs":[],' + ",".join(['"id":"x"'] * 200_000) + "}",
    "a name of megabytes": lambda: json.dumps({"inputs": [{**tensor([1, 2, 3]), "name": "x" * 3_000_000}]}),
    "escapes": lambda: '{"id":"' + "\\u0000" * 500_000 + '"}',
    "many parameters": lambda: json.dumps({"parameters": {f"p{n}": [] for n in range(100_000)}, "inputs": []}),
    "a parameter's name of megabytes": lambda: json.dumps({"parameters": {"x" * 3_000_000: []}, "inputs": []}),
    "an id of megabytes": lambda: json.dumps({"id": "x" * 3_000_000, "inputs": [tensor([1, 2, 3])] * 2}),
    "an output's name of megabytes": lambda: json.dumps({"inputs": [tensor([1, 2, 3])], "outputs": [{"name": "x" * 3_000_000}]}),
    "a datatype of megabytes": lambda: json.dumps({"inputs": [tensor([1, 2, 3], datatype="x" * 3_000_000)]}),
    "a shape of megabytes": lambda: json.dumps({"inputs": [tensor([1, 2, 3], shape=[1] * 1_000_000)]}),
}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_json_that_is_made_to_cost(attacker: Attacker, kind: str) -> None:
    """Deep nesting, long numbers, many members (CVE-2026-24146: many outputs): refused soon, with little memory."""
    resident, began = attacker.resident_bytes(), attacker.server.cpu_s()
    answer = attacker.infer(DOCUMENTS[kind]().encode())
    assert answer.status == 400
    assert len(answer.error) < 10_000
    assert attacker.server.cpu_s() - began < at_pace(CPU_S_MAX)
    assert attacker.resident_bytes() - resident < 200_000_000


def test_classes_without_end_are_those_that_there_are(attacker: Attacker) -> None:
    outputs = [{"name": "OUTPUT", "parameters": {"classification": 2**63}}]
    answer = attacker.infer({"inputs": [tensor([1.0, 2.0, 3.0])], "outputs": outputs})
    assert json.loads(answer.body)["outputs"][0]["data"] == ["6.000000:2", "4.000000:1", "2.000000:0"]


def test_the_same_output_many_times_costs_one(attacker: Attacker) -> None:
    answer = attacker.infer({"inputs": [tensor([1.0, 2.0, 3.0])], "outputs": [{"name": "OUTPUT"}] * 100_000})
    assert answer.status in (200, 400)
    assert len(answer.body) < 10_000


@pytest.mark.parametrize(
    "path", ["/v2/repository/index", "/v2/logging", "/v2/models/affine/trace/setting", "/v2/repository/models/affine/load"]
)
@pytest.mark.parametrize(
    "document", ["[" * 1_000_000, nested(100_000, '{"a":', "}"), nested(100_000, "[", "]"), '{"a":' + "1" * 1_000_000 + "}"]
)
def test_json_of_control_calls(attacker: Attacker, path: str, document: str) -> None:
    began = attacker.server.cpu_s()
    answer = attacker.ask("POST", path, document.encode())
    assert answer.status in (200, 400), answer  # unknown members are passed over where Triton does so
    assert len(answer.body) < 10_000
    assert attacker.server.cpu_s() - began < at_pace(CPU_S_MAX)


def deflated(size: int) -> bytes:
    packer = zlib.compressobj(9)
    block = bytes(1 << 20)
    return b"".join(packer.compress(block) for _ in range(size >> 20)) + packer.flush()


BOMBS = {
    "gzip": lambda: gzip.compress(bytes(500 << 20), 9),
    "deflate": lambda: deflated(500 << 20),
}


@pytest.mark.parametrize("coding", BOMBS)
def test_decompression_bombs(attacker: Attacker, coding: str) -> None:
    """500 MiB of zeros in half a megabyte, against a cap of 4 MB."""
    resident, began = attacker.resident_bytes(), attacker.server.cpu_s()
    answer = attacker.ask("POST", "/v2/models/affine/infer", BOMBS[coding](), f"Content-Encoding: {coding}")
    assert answer.status == 400
    assert attacker.server.cpu_s() - began < at_pace(CPU_S_MAX)
    assert attacker.resident_bytes() - resident < 40_000_000


def test_a_bomb_within_a_bomb(attacker: Attacker) -> None:
    body = gzip.compress(gzip.compress(bytes(10 << 20)))
    answer = attacker.ask("POST", "/v2/models/affine/infer", body, "Content-Encoding: gzip, gzip")
    assert (answer.status, answer.error) == (501, "Unsupported compression type")


@pytest.mark.parametrize("coding", BOMBS)
def test_decompression_bombs_over_grpc(attacker: Attacker, coding: str) -> None:
    request = message_class("inference.ModelInferRequest")(model_name="affine")
    request.raw_input_contents.append(bytes(100 << 20))
    algorithm = grpc.Compression.Gzip if coding == "gzip" else grpc.Compression.Deflate
    resident = attacker.resident_bytes()
    options = [("grpc.max_send_message_length", -1)]
    channel = grpc.insecure_channel(attacker.server.grpc, options=options, compression=algorithm)
    with channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(request.SerializeToString(), timeout=20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert attacker.resident_bytes() - resident < 40_000_000


@pytest.mark.parametrize("chunk", [b"1\r\nx\r\n", b"1;a=b\r\nx\r\n", b"000000001\r\nx\r\n"])
def test_many_small_chunks(attacker: Attacker, chunk: bytes) -> None:
    """CVE-2025-23310 and CVE-2025-23311: a stack overflow by three megabytes of chunks."""
    resident = attacker.resident_bytes()
    head = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    said = attacker.flood(head + chunk * (3_000_000 // len(chunk)), attacker.server.http)
    assert said == b"" or said.startswith(b"HTTP/1.1 400 ")
    assert attacker.resident_bytes() - resident < 30_000_000


def test_raw_contents_that_do_not_add_up(attacker: Attacker) -> None:
    """BYTES elements whose length prefixes point beyond the data."""
    for prefix in (2**32 - 1, 2**31, 13, 9):
        raw = np.uint32(prefix).tobytes() + b"x" * 8
        request = message_class("inference.ModelInferRequest")(model_name="affine")
        request.inputs.add(name="INPUT", datatype="BYTES", shape=[1, 3])
        request.raw_input_contents.append(raw)
        with grpc.insecure_channel(attacker.server.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(request.SerializeToString(), timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
