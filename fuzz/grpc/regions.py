"""Tensors in shared memory regions, over gRPC: as over HTTP, with typed parameters."""

from __future__ import annotations

from typing import Any

from fuzz.chance import Chance
from fuzz.http import regions
from fuzz.tensors import description_of
from tpy.frontends.grpc.codec.request import decode_request
from tpy.frontends.grpc.codec.response import encode_response
from tpy.frontends.grpc.codec.wire import REQUEST_CLASS, parse_request
from tpy.frontends.shared_memory import TensorResolver
from tpy.messages import InferenceRequest, InferenceResponse, ModelDescription, Tensor

_INT64_MAX, _UINT64_MAX = 2**63 - 1, 2**64 - 1


class GrpcCodec:
    """As `fuzz.http.regions.Codec`."""

    def read(
        self, inputs: list[Tensor], outputs: list[Tensor], places: dict[str, regions.Place], tensors: TensorResolver
    ) -> tuple[InferenceRequest, Any]:
        """As `Codec.read`."""
        message: Any = REQUEST_CLASS(model_name="m")
        for tensor in inputs:
            item = message.inputs.add(name=tensor.name, datatype=tensor.datatype.value, shape=tensor.array.shape)
            _set(item.parameters, places[tensor.name])
        for tensor in outputs:
            _set(message.outputs.add(name=tensor.name).parameters, places[tensor.name])
        return decode_request(
            parse_request(memoryview(message.SerializeToString())),
            description=description_of([*inputs, *outputs]),
            version=None,
            received_ns=0,
            deadline_ns=None,
            tensors=tensors,
        )

    def answer(self, response: InferenceResponse, plan: Any, description: ModelDescription) -> None:
        """As `Codec.answer`."""
        encode_response(response, plan, description)


def _set(parameters: Any, place: regions.Place) -> None:
    """Sets typed parameters; one without a value for what no field can hold."""
    for key, value in place.items():
        parameter = parameters[key]
        match value:
            case bool():
                parameter.bool_param = value
            case int() if -1 <= value <= _INT64_MAX:
                parameter.int64_param = value
            case int() if value <= _UINT64_MAX:
                parameter.uint64_param = value
            case float():
                parameter.double_param = value
            case str():
                parameter.string_param = value
            case _:
                parameter.SetInParent()


def run(chance: Chance, resolver: type[TensorResolver] = TensorResolver) -> int:
    """One request and its answer."""
    return regions.run(chance, resolver, GrpcCodec())
