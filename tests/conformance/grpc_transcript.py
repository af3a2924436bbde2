"""One answered call, as it is recorded and compared."""

from __future__ import annotations

from typing import Any

import grpc
import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from .grpc_cases import GrpcCase
from .transcript import stable

_TIMEOUT_S = 60
_CHANNEL_OPTIONS = (("grpc.max_receive_message_length", -1),)


class GrpcAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Status, its text, and the response messages: one for OK, any number for a stream. Raw contents are in base64."""

    status: str
    details: str = ""
    responses: list[Any] = []


def connect(address: str) -> grpc.Channel:
    """A channel to `address` (host:port)."""
    return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)


def send(channel: grpc.Channel, case: GrpcCase) -> GrpcAnswer:
    """Make the case's call."""
    path = f"/inference.GRPCInferenceService/{case.method}"
    responses: list[Any] = []
    try:
        if case.method == "ModelStreamInfer":
            call = channel.stream_stream(path)(iter(case.messages), timeout=_TIMEOUT_S, metadata=case.metadata)
            responses.extend(_shown(pb.ModelStreamInferResponse, response) for response in call)
        else:
            response = channel.unary_unary(path)(case.messages[0], timeout=_TIMEOUT_S, metadata=case.metadata)
            responses.append(_shown(getattr(pb, f"{case.method}Response"), response))
    except grpc.RpcError as error:
        return GrpcAnswer(status=error.code().name, details=stable(error.details()), responses=responses)
    return GrpcAnswer(status="OK", responses=responses)


def _shown(kind: type[Message], serialised: bytes) -> Any:
    message = kind.FromString(serialised)
    for each in getattr(message, "model_stats", ()):
        each.ClearField("memory_usage")  # Triton has none unless its backends are told to track memory
    return stable(json_format.MessageToDict(message, preserving_proto_field_name=True))
