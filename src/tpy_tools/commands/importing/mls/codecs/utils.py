"""Finds the codec of a message, and keeps what it made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ..settings import ModelSettings
from ..types import (
    InferenceRequest,
    InferenceResponse,
    MetadataTensor,
    Parameters,
    RequestInput,
    RequestOutput,
    ResponseOutput,
)
from .base import InputCodecLike, RequestCodec, find_input_codec, find_request_codec
from .errors import CodecError

DecodedParameterName = "_decoded_payload"
"""The attribute of `parameters` that holds what a codec made."""

_ONE = 1


def inject_batch_dimension(shape: Sequence[int]) -> list[int]:
    """A shape with rows: [N] is [N, 1]."""
    return [*shape] if len(shape) > 1 else [*shape, 1]


def elements_of(tensor: RequestInput) -> Iterator[Any]:
    """The elements; a single one counts as a list of it."""
    elements = tensor.data.root
    yield from elements if isinstance(elements, list) else [elements]


def content_type_of(message: Any, described: MetadataTensor | ModelSettings | None = None) -> str | None:
    """The content type that a message says, or its description."""
    for each in (message, described):
        if each is not None and each.parameters is not None and each.parameters.content_type:
            return str(each.parameters.content_type)
    return None


def _keep(message: Any, value: Any) -> None:
    if message.parameters is None:
        message.parameters = Parameters()
    setattr(message.parameters, DecodedParameterName, value)


def has_decoded(parametrised_obj: Any) -> bool:
    """Returns True if a codec has made something of the message."""
    return parametrised_obj.parameters is not None and hasattr(parametrised_obj.parameters, DecodedParameterName)


def get_decoded(parametrised_obj: Any) -> Any:
    """The value that a codec has made of the message; None without one."""
    return getattr(parametrised_obj.parameters, DecodedParameterName, None)


def get_decoded_or_raw(parametrised_obj: Any) -> Any:
    """The value that a codec has made; else the data of a tensor, or the message."""
    if has_decoded(parametrised_obj):
        return get_decoded(parametrised_obj)
    return parametrised_obj.data if isinstance(parametrised_obj, RequestInput) else parametrised_obj


def decode_request_input(request_input: RequestInput, metadata_inputs: Mapping[str, MetadataTensor] | None = None) -> Any:
    """The value of an input by its content type, which is kept with it; None without a codec."""
    found = content_type_of(request_input, (metadata_inputs or {}).get(request_input.name))
    codec = find_input_codec(found) if found else None
    if codec is None:
        return None
    value = codec.decode_input(request_input)
    _keep(request_input, value)
    return value


def decode_inference_request(
    inference_request: InferenceRequest,
    model_settings: ModelSettings | None = None,
    metadata_inputs: Mapping[str, MetadataTensor] | None = None,
) -> Any:
    """The value of a request by its content type, which is kept with it; the request without a codec."""
    for request_input in inference_request.inputs:
        decode_request_input(request_input, metadata_inputs)
    found = content_type_of(inference_request, model_settings)
    codec = find_request_codec(found) if found else None
    if codec is None:
        return inference_request
    value = codec.decode_request(inference_request)
    _keep(inference_request, value)
    return value


def encode_response_output(
    payload: Any, request_output: RequestOutput, metadata_outputs: Mapping[str, MetadataTensor] | None = None
) -> ResponseOutput | None:
    """The output that is made of a value by its content type, or by its type; None without a codec."""
    found = content_type_of(request_output, (metadata_outputs or {}).get(request_output.name))
    codec = find_input_codec(found) if found else find_input_codec(payload=payload)
    return None if codec is None else codec.encode_output(name=request_output.name, payload=payload)


def encode_inference_response(payload: Any, model_settings: ModelSettings) -> InferenceResponse | None:
    """The response that is made of a value by its type; None without a codec."""
    codec = find_request_codec(payload=payload)
    return None if codec is None else codec.encode_response(model_settings.name, payload, model_settings.version)


class SingleInputRequestCodec(RequestCodec):
    """A codec of requests with one input."""

    InputCodec: ClassVar[InputCodecLike]

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """As RequestCodec."""
        return cls.InputCodec.can_encode(payload)

    @classmethod
    def encode_response(cls, model_name: str, payload: Any, model_version: str | None = None, **kwargs: Any) -> InferenceResponse:
        """As RequestCodec."""
        return InferenceResponse(
            model_name=model_name,
            model_version=model_version,
            parameters=Parameters(content_type=cls.ContentType),
            outputs=[cls.InputCodec.encode_output("output-1", payload, **kwargs)],
        )

    @classmethod
    def decode_response(cls, response: InferenceResponse) -> Any:
        """As RequestCodec."""
        return cls._only(response.outputs, "output")

    @classmethod
    def encode_request(cls, payload: Any, **kwargs: Any) -> InferenceRequest:
        """As RequestCodec."""
        return InferenceRequest(
            inputs=[cls.InputCodec.encode_input("input-1", payload, **kwargs)],
            parameters=Parameters(content_type=cls.ContentType),
        )

    @classmethod
    def decode_request(cls, request: InferenceRequest) -> Any:
        """As RequestCodec."""
        return cls._only(request.inputs, "input")

    @classmethod
    def _only(cls, tensors: Sequence[RequestInput], kind: str) -> Any:
        if len(tensors) != _ONE:
            raise CodecError(f"The '{cls.ContentType}' codec only supports a single {kind} tensor ({len(tensors)} were received)")
        [tensor] = tensors
        if not has_decoded(tensor):
            _keep(tensor, cls.InputCodec.decode_input(tensor))
        return get_decoded(tensor)
