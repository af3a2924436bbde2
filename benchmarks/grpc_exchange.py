"""Inference calls over gRPC by grpcio, and whether what came back is what was sent."""

from __future__ import annotations

import grpc
import numpy as np

from benchmarks.servers.process import HOST
from benchmarks.tensors import FloatArray, WrongAnswer
from tpy._proto import message_class

_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_TIMEOUT_S = 60
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def call(port: int, model: str, name: str, values: FloatArray, *, times: int = 1) -> None:
    """Send one FP32 input `times` times, one after the other. Raises WrongAnswer unless it comes back every time."""
    request = message_class("inference.ModelInferRequest")(model_name=model)
    request.inputs.add(name=name, datatype="FP32", shape=values.shape)
    request.raw_input_contents.append(values.tobytes())
    message = request.SerializeToString()
    with grpc.insecure_channel(f"{HOST}:{port}", options=_OPTIONS) as channel:
        ask = channel.unary_unary(_METHOD)
        for _ in range(times):
            try:
                answer = message_class("inference.ModelInferResponse").FromString(ask(message, timeout=_TIMEOUT_S))
            except grpc.RpcError as error:
                raise WrongAnswer(f"ModelInfer of {model}: {error.code().name}, {error.details()}") from error
            if not np.array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32), values.ravel()):
                raise WrongAnswer(f"ModelInfer of {model}: sent {values.size} values, got others back")
