"""The base classes of codecs, and the table of those there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from ..logging import logger
from ..types import InferenceRequest, InferenceResponse, RequestInput, ResponseOutput


class InputCodec:
    """A codec of single inputs and outputs. `TypeHint` is what arguments of `decode_args` are annotated with."""

    ContentType: ClassVar[str] = ""
    TypeHint: ClassVar[Any] = type(None)

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Returns True for a value that it writes."""
        return False

    @classmethod
    def encode(cls, name: str, payload: Any) -> ResponseOutput:
        """The old name of encode_output."""
        return cls.encode_output(name, payload)

    @classmethod
    def encode_output(cls, name: str, payload: Any, **kwargs: Any) -> ResponseOutput:
        """The output that is made of a value."""
        raise NotImplementedError

    @classmethod
    def decode_output(cls, response_output: ResponseOutput) -> Any:
        """The value of an output: as that of an input."""
        return cls.decode_input(response_output)

    @classmethod
    def encode_input(cls, name: str, payload: Any, **kwargs: Any) -> RequestInput:
        """The input that is made of a value: as an output."""
        output = cls.encode_output(name, payload, **kwargs)
        return RequestInput(
            name=output.name, shape=output.shape, datatype=output.datatype, data=output.data, parameters=output.parameters
        )

    @classmethod
    def decode(cls, request_input: RequestInput) -> Any:
        """The old name of decode_input."""
        return cls.decode_input(request_input)

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> Any:
        """The value of an input."""
        raise NotImplementedError


class RequestCodec:
    """A codec of whole requests and responses."""

    ContentType: ClassVar[str] = ""
    TypeHint: ClassVar[Any] = type(None)

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Returns True for a value that it writes."""
        return False

    @classmethod
    def encode(cls, model_name: str, payload: Any, model_version: str | None = None) -> InferenceResponse:
        """The old name of encode_response."""
        return cls.encode_response(model_name, payload, model_version)

    @classmethod
    def encode_response(cls, model_name: str, payload: Any, model_version: str | None = None, **kwargs: Any) -> InferenceResponse:
        """The response that is made of a value."""
        raise NotImplementedError

    @classmethod
    def decode_response(cls, response: InferenceResponse) -> Any:
        """The value of a response."""
        raise NotImplementedError

    @classmethod
    def encode_request(cls, payload: Any, **kwargs: Any) -> InferenceRequest:
        """The request that is made of a value."""
        raise NotImplementedError

    @classmethod
    def decode(cls, request: InferenceRequest) -> Any:
        """The old name of decode_request."""
        return cls.decode_request(request)

    @classmethod
    def decode_request(cls, request: InferenceRequest) -> Any:
        """The value of a request."""
        raise NotImplementedError


InputCodecLike = type[InputCodec] | InputCodec
RequestCodecLike = type[RequestCodec] | RequestCodec

_Input = TypeVar("_Input", bound=InputCodecLike)
_Request = TypeVar("_Request", bound=RequestCodecLike)
_Codec = TypeVar("_Codec", bound=InputCodecLike | RequestCodecLike)

_inputs: dict[str, InputCodecLike] = {}
_requests: dict[str, RequestCodecLike] = {}


def register_input_codec(codec: _Input) -> _Input:
    """Codecs of inputs are found by its content type from now on. A decorator."""
    _inputs[codec.ContentType] = codec
    return codec


def register_request_codec(codec: _Request) -> _Request:
    """Codecs of requests are found by its content type from now on. A decorator."""
    _requests[codec.ContentType] = codec
    return codec


def find_input_codec(content_type: str | None = None, payload: Any = None, type_hint: Any = None) -> InputCodecLike | None:
    """The codec of inputs for the first of these that is given; None without one."""
    return _find(_inputs, content_type, payload, type_hint)


def find_request_codec(content_type: str | None = None, payload: Any = None, type_hint: Any = None) -> RequestCodecLike | None:
    """The codec of requests for the first of these that is given; None without one."""
    return _find(_requests, content_type, payload, type_hint)


def find_input_codec_by_payload(payload: Any) -> InputCodecLike | None:
    """The first codec of inputs that writes the value."""
    return _by_payload(_inputs.values(), payload)


def find_request_codec_by_payload(payload: Any) -> RequestCodecLike | None:
    """The first codec of requests that writes the value."""
    return _by_payload(_requests.values(), payload)


def _find(codecs: Mapping[str, _Codec], content_type: str | None, payload: Any, type_hint: Any) -> _Codec | None:
    if content_type:
        return codecs.get(content_type)
    if payload is not None:
        return _by_payload(codecs.values(), payload)
    return next((codec for codec in codecs.values() if _plain(codec.TypeHint) == _plain(type_hint)), None)


def _by_payload(codecs: Iterable[_Codec], payload: Any) -> _Codec | None:
    found = next((codec for codec in codecs if codec.can_encode(payload)), None)
    if found is None:
        logger.warning("No codec was found for payload with type %s.", type(payload))
    return found


def _plain(hint: Any) -> Any:
    """A hint in a form that can be compared: List[str] and list[str] are one."""
    return (get_origin(hint), get_args(hint)) if get_origin(hint) is not None else hint
