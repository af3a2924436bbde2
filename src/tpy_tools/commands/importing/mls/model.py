"""MLModel, the base class of models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from .codecs.base import InputCodecLike, RequestCodecLike
from .codecs.errors import CodecNotFound
from .codecs.utils import (
    decode_inference_request,
    decode_request_input,
    encode_inference_response,
    encode_response_output,
    get_decoded,
    has_decoded,
)
from .settings import ModelSettings
from .types import (
    InferenceRequest,
    InferenceResponse,
    MetadataModelResponse,
    MetadataTensor,
    Parameters,
    RequestInput,
    RequestOutput,
    ResponseOutput,
)


class MLModel:
    """A model: a subclass has `predict`, and `load` and `unload` where there is something to do."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._inputs_index = _by_name(settings.inputs)
        self._outputs_index = _by_name(settings.outputs)
        self.ready = False

    async def load(self) -> bool:
        """Load the model; False when it is not ready."""
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """The response to a request."""
        raise NotImplementedError("predict() method not implemented")

    async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> AsyncIterator[InferenceResponse]:
        """The responses to requests, one by one."""
        yield await self.predict(await payloads.__anext__())

    async def unload(self) -> bool:
        """Release what the model holds."""
        return True

    @property
    def name(self) -> str:
        """The model's name."""
        return self._settings.name

    @property
    def version(self) -> str | None:
        """The version in the settings."""
        return self._settings.version

    @property
    def settings(self) -> ModelSettings:
        """The settings."""
        return self._settings

    @property
    def inputs(self) -> list[MetadataTensor]:
        """Inputs as the settings, or the model, describe them."""
        return self._settings.inputs

    @inputs.setter
    def inputs(self, value: list[MetadataTensor]) -> None:
        self._settings.inputs = value
        self._inputs_index = _by_name(value)

    @property
    def outputs(self) -> list[MetadataTensor]:
        """Outputs as the settings, or the model, describe them."""
        return self._settings.outputs

    @outputs.setter
    def outputs(self, value: list[MetadataTensor]) -> None:
        self._settings.outputs = value
        self._outputs_index = _by_name(value)

    def decode(self, request_input: RequestInput, default_codec: InputCodecLike | None = None) -> Any:
        """An input by the codec of its content type or that of the settings, else by `default_codec`; its data without any."""
        decode_request_input(request_input, self._inputs_index)
        if has_decoded(request_input):
            return get_decoded(request_input)
        return request_input.data if default_codec is None else default_codec.decode_input(request_input)

    def decode_request(self, inference_request: InferenceRequest, default_codec: RequestCodecLike | None = None) -> Any:
        """A request by the codec of its content type or that of the settings, else by `default_codec`; as it is without any."""
        decode_inference_request(inference_request, self._settings, self._inputs_index)
        if has_decoded(inference_request):
            return get_decoded(inference_request)
        return inference_request if default_codec is None else default_codec.decode_request(inference_request)

    def encode_response(self, payload: Any, default_codec: RequestCodecLike | None = None) -> InferenceResponse:
        """A response by the codec for the type of `payload`, else by `default_codec`. Raises CodecNotFound."""
        response = encode_inference_response(payload, self._settings)
        if response is not None:
            return response
        if default_codec is not None:
            return default_codec.encode_response(self.name, payload, self.version)
        raise CodecNotFound(payload_type=str(type(payload)), is_request=True)

    def encode(self, payload: Any, request_output: RequestOutput, default_codec: InputCodecLike | None = None) -> ResponseOutput:
        """An output by the codec of its content type, that of the settings or that for its type, else by `default_codec`. Raises
        CodecNotFound."""
        output = encode_response_output(payload, request_output, self._outputs_index)
        if output is not None:
            return output
        if default_codec is not None:
            return default_codec.encode_output(request_output.name, payload)
        raise CodecNotFound(name=request_output.name)

    async def metadata(self) -> MetadataModelResponse:
        """A description of the model."""
        settings = self._settings
        found = MetadataModelResponse(
            name=self.name,
            platform=settings.platform,
            versions=settings.versions,
            inputs=settings.inputs,
            outputs=settings.outputs,
        )
        if settings.parameters is not None:
            found.parameters = Parameters(content_type=settings.parameters.content_type)
        return found


def _by_name(tensors: list[MetadataTensor] | None) -> Mapping[str, MetadataTensor]:
    return {tensor.name: tensor for tensor in tensors or ()}
