"""Calls that the tests of several classes make."""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

import grpc

from tests.security.attacker import Attacker, tensor
from tpy._proto import message_class

SERVICE = "/inference.GRPCInferenceService/"
IO = {
    "input": [{"name": "INPUT", "data_type": "TYPE_FP32", "dims": [3]}],
    "output": [{"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [3]}],
}
GOOD = {"inputs": [tensor([1.0, 2.0, 3.0])]}


class Refusal(NamedTuple):
    """The status and text of a call over gRPC."""

    code: grpc.StatusCode
    text: str


def call(attacker: Attacker, method: str, request: Any, *, metadata: Any = (), **options: Any) -> Refusal | bytes:
    """One call over gRPC: its answer, or how it was refused. `request` is a message or its bytes."""
    body = request if isinstance(request, bytes) else request.SerializeToString()
    limits = [("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 2**30)]
    with grpc.insecure_channel(attacker.server.grpc, options=limits, **options) as channel:
        try:
            return bytes(channel.unary_unary(SERVICE + method)(body, timeout=20, metadata=metadata))
        except grpc.RpcError as error:
            return Refusal(error.code(), error.details() or "")  # type: ignore[attr-defined]  # a Call, too


def refused(attacker: Attacker, method: str, request: Any, **options: Any) -> Refusal:
    """As `call`, of one that must be refused, and not as a bug of the server."""
    found = call(attacker, method, request, **options)
    assert isinstance(found, Refusal), found
    assert found.code not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED), found
    assert found.code is not grpc.StatusCode.UNAVAILABLE or "restricted" in found.text, found
    return found


def infer_message(raw: bytes = bytes(12), **fields: Any) -> Any:
    """A ModelInferRequest of `affine` with one input of these fields."""
    request = message_class("inference.ModelInferRequest")(model_name="affine")
    request.inputs.add(**{"name": "INPUT", "datatype": "FP32", "shape": [1, 3], **fields})
    request.raw_input_contents.append(raw)
    return request


def binary(attacker: Attacker, entry: dict[str, Any], raw: bytes, length: str | None = None) -> int:
    """The status of an inference with this input, whose data come behind the JSON."""
    head = json.dumps({"inputs": [{"name": "INPUT", "datatype": "FP32", **entry}]}).encode()
    header = f"Inference-Header-Content-Length: {len(head) if length is None else length}"
    return attacker.ask("POST", "/v2/models/affine/infer", head + raw, header).status


def load_file(attacker: Attacker, path: str, config: dict[str, Any] | None = None, content: bytes = b"taken") -> int:
    """The status of a load call that brings a file."""
    given = {"config": json.dumps(config or {"backend": "identity"}), f"file:{path}": base64.b64encode(content).decode()}
    return attacker.load("intruder", given).status
