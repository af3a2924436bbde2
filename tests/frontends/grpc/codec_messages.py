"""Messages of inference for tests of the gRPC codec."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.frontends.http.fakes import describe
from tpy.errors import InvalidArgument
from tpy.frontends.grpc import codec
from tpy.messages import DataType, InferenceRequest, InferenceResponse, Tensor
from tpy.messages.datatypes import BY_WORD

NUMERIC = [kind for kind in BY_WORD.values() if kind is not DataType.BYTES]
FP32 = ("INPUT0", "FP32", [1, 4])
TYPED = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def decode(message: pb.ModelInferRequest, **changes: Any) -> tuple[InferenceRequest, codec.GrpcOutputPlan]:
    parsed = codec.parse_request(memoryview(message.SerializeToString()))
    version = codec.parse_version(parsed.head.model_version)
    values: dict[str, Any] = {"description": describe("m"), "version": version, "received_ns": 7, "deadline_ns": None}
    return codec.decode_request(parsed, **{**values, **changes})


def request(*inputs: tuple[str, str, list[int]], raw: tuple[bytes, ...] = (), **members: Any) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="m", **members)
    for name, datatype, shape in inputs:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
    message.raw_input_contents.extend(raw)
    return message


def typed(datatype: str, shape: list[int], field: str, values: list[Any]) -> pb.ModelInferRequest:
    message = request(("INPUT0", datatype, shape))
    getattr(message.inputs[0].contents, field).extend(values)
    message.inputs[0].contents.SetInParent()
    return message


def refusal(message: pb.ModelInferRequest) -> str:
    with pytest.raises(InvalidArgument) as caught:
        decode(message)
    return str(caught.value)


def response_of(*tensors: Tensor, **members: Any) -> InferenceResponse:
    return InferenceResponse(model_name="m", model_version=3, outputs=tensors, **members)


def encoded(response: InferenceResponse, plan: codec.GrpcOutputPlan = codec.NO_PLAN) -> pb.ModelInferResponse:
    return pb.ModelInferResponse.FromString(b"".join(codec.encode_response(response, plan, describe("m"))))
