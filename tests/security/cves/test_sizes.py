"""Sizes, counts and numbers that are not what they say: too large, wrapped around, negative, none; and files of models."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.pace import at_pace
from tests.security.attacker import Answer, Attacker, tensor
from tpy._proto import message_class

from .calls import GOOD, IO, binary, infer_message, refused

CPU_S_MAX = 5.0
"""Of the server, for a test: what takes quadratic time takes minutes, on any machine."""
GROWTH_BYTES_MAX = 200_000_000
WRAPPED = (2**31, 2**32, 2**32 + 12, 2**63 - 1, 2**63, 2**64, 2**64 + 12, -1, -(2**63), -(2**64) + 12)


@pytest.fixture(autouse=True)
def cheap(attacker: Attacker) -> Iterator[None]:
    """The server spends little time and memory."""
    resident, cpu_s = attacker.resident_bytes(), attacker.server.cpu_s()
    yield
    assert attacker.server.cpu_s() - cpu_s < at_pace(CPU_S_MAX)
    assert attacker.resident_bytes() - resident < GROWTH_BYTES_MAX


def test_cve_2026_47628(attacker: Attacker) -> None:
    """770, allocation without limits: a request of many inputs."""
    answer = attacker.infer({"inputs": [{**tensor([1, 2, 3]), "name": f"I{number}"} for number in range(30_000)]})
    assert answer.status == 400
    assert answer.error.startswith("request JSON has more than "), "it is refused before inputs are made"


def test_cve_2026_47479(attacker: Attacker) -> None:
    """400, uncontrolled resource consumption: a document that is dear to read."""
    for document in (b"[" * 3_000_000, b'{"a":' * 500_000, b'{"inputs":[],' + b'"id":"x",' * 200_000 + b'"id":"x"}'):
        answer = attacker.infer(document)
        assert answer.status == 400
        assert len(answer.error) < 10_000


def test_cve_2026_47476(attacker: Attacker) -> None:
    """400, uncontrolled resource consumption: a gRPC message of a million empty fields."""
    found = refused(attacker, "ModelInfer", b"\x2a\x00" * 1_900_000)
    assert found.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "fields" in found.text, found


def test_cve_2026_24146(attacker: Attacker) -> None:
    """789, allocation of an excessive size: a request for many outputs."""
    many = {**GOOD, "outputs": [{"name": f"O{number}"} for number in range(100_000)]}
    answer = attacker.infer(many)
    assert answer.status == 400
    assert answer.error.startswith("request JSON has more than "), "it is refused before outputs are looked up"
    same = attacker.infer({**GOOD, "outputs": [{"name": "OUTPUT"}] * 100_000})
    assert same.status == 400
    assert len(same.body) < 10_000


def test_cve_2026_24158(attacker: Attacker) -> None:
    """789, allocation of an excessive size: a compressed body that is larger than the limit when it is unpacked."""
    bomb = gzip.compress(bytes(500 << 20), 9)
    answer = attacker.ask("POST", "/v2/models/affine/infer", bomb, "Content-Encoding: gzip")
    assert answer.status == 400
    assert answer.error.startswith("Decompressed data size exceeds the maximum allowed value of 4000000 bytes")


def test_cve_2026_24264(attacker: Attacker) -> None:
    """409, a compressed bomb: over gRPC."""
    found = refused(attacker, "ModelInfer", infer_message(bytes(100 << 20)), compression=grpc.Compression.Gzip)
    assert found.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_cve_2025_33211(attacker: Attacker) -> None:
    """1284, a quantity that is not validated: how many classes are wanted."""

    def classes(count: object) -> Answer:
        return attacker.infer({**GOOD, "outputs": [{"name": "OUTPUT", "parameters": {"classification": count}}]})

    for count in (3, 2**31, 2**63, 2**64 - 1):  # as many as there are
        [output] = json.loads(classes(count).body)["outputs"]
        assert (output["shape"], output["data"]) == ([1, 3], ["6.000000:2", "4.000000:1", "2.000000:0"]), count
    [output] = json.loads(classes(0).body)["outputs"]
    assert output["data"] == [2.0, 4.0, 6.0], "no classes"
    for wrong in (2**64, -1, 1.5, "3", [3]):
        answer = classes(wrong)
        assert (answer.status, "classification" in answer.error) == (400, True), (wrong, answer)


def test_cve_2025_33201(attacker: Attacker) -> None:
    """754, an unusual condition that is not checked: bodies that are larger than allowed, or than they say."""
    post = b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: x\r\n"
    assert attacker.ask("POST", "/v2/models/affine/infer", b" " * 4_000_001).status == 400
    for size in (10**12, 2**63 - 1):
        [answer] = attacker.exchange(post + b"Content-Length: %d\r\n\r\n{}" % size)
        assert answer.status == 400


def test_cve_2025_33202(attacker: Attacker) -> None:
    """121, stack overflow: a very large payload, in chunks, that nests."""
    chunks = b"".join(b"8000\r\n" + b"[" * 32_768 + b"\r\n" for _ in range(100)) + b"0\r\n\r\n"
    head = b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    [answer] = attacker.exchange(head + chunks)
    assert answer.status == 400


def test_cve_2025_23331(attacker: Attacker) -> None:
    """789, allocation of an excessive size: a request says that it is larger than it is."""
    for shape in ([1, 2**40], [2**40, 3], [1, 3, 2**50]):
        assert attacker.infer({"inputs": [tensor([1.0, 2.0, 3.0], shape=shape)]}).status == 400
        assert binary(attacker, {"shape": shape, "parameters": {"binary_data_size": 12}}, bytes(12)) == 400


def test_cve_2026_24210(attacker: Attacker) -> None:
    """190, integer overflow: the size of binary data."""
    for size in WRAPPED:
        assert binary(attacker, {"shape": [1, 3], "parameters": {"binary_data_size": size}}, bytes(12)) == 400, size


def test_cve_2026_24173(attacker: Attacker) -> None:
    """190, integer overflow: a shape whose product wraps around."""
    for shape in ([2**32, 2**32], [2**62, 4], [2**63, 2], [2**64 + 1, 3], [0, 2**62, 2**62], [2**63 - 1, 3]):
        assert attacker.infer({"inputs": [tensor([1.0, 2.0, 3.0], shape=shape)]}).status == 400, shape


def test_cve_2026_24174(attacker: Attacker) -> None:
    """681, wrong conversion of numbers: what is no whole number where one is expected."""
    for size in (1.5, 1e300, "1", True, None, [1], {}):
        assert attacker.infer({"inputs": [tensor([1.0, 2.0, 3.0], shape=[size, 3])]}).status == 400, size
        assert binary(attacker, {"shape": [1, 3], "parameters": {"binary_data_size": size}}, bytes(12)) == 400, size


def test_cve_2025_23327(attacker: Attacker) -> None:
    """190, integer overflow: a shape whose product wraps around, over gRPC."""
    for shape in ([2**32, 2**32], [2**62, 4], [2**63 - 1, 3], [0, 2**62, 2**62]):
        assert refused(attacker, "ModelInfer", infer_message(shape=shape)).code is grpc.StatusCode.INVALID_ARGUMENT, shape


def test_cve_2025_23326(attacker: Attacker) -> None:
    """680, integer overflow to buffer overflow: lengths of strings that point beyond the data."""
    for length in (2**32 - 1, 2**31, 13, 9):
        raw = length.to_bytes(4, "little") + b"x" * 8
        found = refused(attacker, "ModelInfer", infer_message(raw, datatype="BYTES"))
        assert found.code is grpc.StatusCode.INVALID_ARGUMENT
        assert "incomplete string data" in found.text, found


def test_cve_2025_23323(attacker: Attacker) -> None:
    """190, integer overflow: the length of the JSON part of a body."""
    for length in (*map(str, WRAPPED), "99999999999999999999999", "0x10", "1_0", "+5", ""):
        assert binary(attacker, {"shape": [1, 3], "parameters": {"binary_data_size": 12}}, bytes(12), length) == 400, length


def test_cve_2025_23321(attacker: Attacker) -> None:
    """369, division by zero: tensors and batches of nothing."""
    for shape in ([0, 3], [1, 0], [0], [0, 0]):
        for model in ("affine", "copy"):
            answer = attacker.infer({"inputs": [tensor([], shape=shape)]}, model)
            assert answer.status == 400, (shape, model)
            assert "input 'INPUT'" in answer.error, (shape, model)


def test_cve_2024_53880(attacker: Attacker) -> None:
    """190, integer overflow: the size of a file in a load call, beyond what a load call may bring."""
    content = base64.b64encode(bytes(8 << 20)).decode()
    answer = attacker.load("intruder", {"config": json.dumps({"backend": "identity"}), "file:1/model": content})
    assert answer.status == 400


def test_cve_2025_23335(attacker: Attacker) -> None:
    """191, underflow: sizes of a TensorRT model below zero. No kernel of TensorRT runs here without a GPU: the shape is refused
    before any backend sees it."""
    for shape in ([1, -3], [-1, 3], [-(2**63), 3], [1, -(2**31)]):
        assert refused(attacker, "ModelInfer", infer_message(shape=shape)).code is grpc.StatusCode.INVALID_ARGUMENT, shape


MISCONFIGURED: dict[str, dict[str, Any]] = {
    "'max_batch_size' must be non-negative": {"max_batch_size": -1},
    "has count 1000000000; expected at most": {"instance_group": [{"count": 10**9, "kind": "KIND_CPU"}]},
    "dimension must be integer >= 1": {"input": [{"name": "INPUT", "data_type": "TYPE_FP32", "dims": [0]}]},
    "must specify 'data_type'": {"input": [{"name": "INPUT", "data_type": "TYPE_INVALID", "dims": [3]}]},
    "configuration expects 2 inputs": {"input": IO["input"] * 2},
    "must specify 'input_map'": {
        "platform": "ensemble",
        "backend": "",
        "ensemble_scheduling": {"step": [{"model_name": "bait", "model_version": -1}]},
    },
}
"""By what is said of it."""


def test_cve_2025_23336(attacker: Attacker) -> None:
    """20, improper input validation: a misconfigured model."""
    for said, change in MISCONFIGURED.items():
        config = {"backend": "onnxruntime", "max_batch_size": 8, **IO, **change}
        answer = attacker.load("bait", {"config": json.dumps(config)})
        assert answer.status in (400, 500), said
        assert said in answer.error


# DALI: tpy's backend shares no code with Triton's. A pipeline is a file, which is read in a process of its own where it is
# Python; what a client can bring is that file, by a load call. Without DALI nothing reads it, and nothing would be tested.


@pytest.fixture
def pipelines(attacker: Attacker) -> Attacker:
    """A server whose backend `dali` can read pipelines."""
    pytest.importorskip("nvidia.dali", reason="needs DALI: make test-backends")
    return attacker


def _load_pipeline(attacker: Attacker, content: bytes) -> None:
    config = {"backend": "dali", "max_batch_size": 8, **IO}
    given = {"config": json.dumps(config), "file:1/model.dali": base64.b64encode(content).decode()}
    answer = attacker.load("bait", given)
    assert answer.status in (400, 500), answer
    assert answer.error


def test_cve_2026_24213(pipelines: Attacker) -> None:
    """125, out-of-bounds read: a serialized pipeline that ends in the middle."""
    _load_pipeline(pipelines, b"\x0a\xff\xff\xff\xff\x0fx")


def test_cve_2026_24214(pipelines: Attacker) -> None:
    """190, integer overflow: a serialized pipeline whose lengths wrap around."""
    _load_pipeline(pipelines, b"\x0a" + b"\xff" * 9 + b"\x01" + b"\x12" + b"\x80" * 9 + b"\x01")


def test_cve_2026_24215(pipelines: Attacker) -> None:
    """400, uncontrolled resource consumption: a serialized pipeline of a million empty operators."""
    _load_pipeline(pipelines, b"\x1a\x00" * 500_000)


def test_cve_2025_23268(pipelines: Attacker) -> None:
    """20, improper input validation: a file that is no pipeline."""
    for content in (b"", b"import os\n", bytes(1000), b"\x80\x04cposix\nsystem\n."):
        _load_pipeline(pipelines, content)


def test_the_names_of_fields_are_those_of_the_protocol() -> None:
    """The raw bytes of `test_cve_2026_47476` are empty inputs."""
    assert message_class("inference.ModelInferRequest").FromString(b"\x2a\x00\x2a\x00").inputs
