"""`decode_args`: a `predict` whose arguments are inputs by name, in the types that it is annotated with."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import Any, Union, get_args, get_origin, get_type_hints

from ..types import InferenceRequest, InferenceResponse, ResponseOutput
from .base import InputCodec, RequestCodec, find_input_codec, find_request_codec
from .errors import CodecNotFound, InputsNotFound, OutputNotFound

_TWO = 2


class SignatureCodec(RequestCodec):
    """The codec of one function. Its methods are those of the object, as the codecs are those of its hints."""

    def __init__(self, predict: Callable[..., Any]) -> None:
        """Raises CodecNotFound for a hint that no codec has."""
        hints = get_type_hints(predict)
        self._output_hints = list(_values(hints.pop("return", None)))
        self._inputs = {name: _codec(name, _without_none(hint), is_input=True) for name, hint in hints.items()}
        self._outputs = [_codec(None, _without_none(hint), is_input=False) for hint in self._output_hints]

    def decode_request(self, request: InferenceRequest) -> dict[str, Any]:  # type: ignore[override]  # as in MLServer
        """The arguments. Inputs that no argument has are columns of the one that takes a whole request. Raises
        InputsNotFound."""
        found: dict[str, Any] = {}
        others = []
        for tensor in request.inputs:
            codec = self._inputs.get(tensor.name)
            if codec is None:
                others.append(tensor)
            elif not _is(codec, InputCodec):
                raise CodecNotFound(name=tensor.name, is_input=True)
            else:
                found[tensor.name] = codec.decode_input(tensor)
        if others:
            whole = next(((name, codec) for name, codec in self._inputs.items() if _is(codec, RequestCodec)), None)
            if whole is None:
                raise InputsNotFound(others, self._inputs)
            found[whole[0]] = whole[1].decode_request(InferenceRequest(inputs=others))
        return found

    def encode_response(  # type: ignore[override]  # as in MLServer
        self, model_name: str, payload: Any, model_version: str | None = None
    ) -> InferenceResponse:
        """The response of what the function returned. Raises OutputNotFound for another type than that of the hint."""
        outputs: list[ResponseOutput] = []
        for at, value in enumerate(_values(payload)):
            codec = self._outputs[at] if at < len(self._outputs) else None
            if codec is None or not codec.can_encode(value):
                raise OutputNotFound(at, type(value), self._output_hints)
            if _is(codec, InputCodec):
                outputs.append(codec.encode_output(name=f"output-{at}", payload=value))
            else:
                outputs += codec.encode_response(model_name="", payload=value).outputs
        return InferenceResponse(model_name=model_name, model_version=model_version, outputs=outputs)


def _values(value: Any) -> Iterator[Any]:
    """The parts of a tuple or of a tuple's hint; nothing for None, else the value."""
    if isinstance(value, tuple):
        yield from value
    elif get_origin(value) is tuple:
        yield from get_args(value)
    elif value is not None and value is not type(None):
        yield value


def _without_none(hint: Any) -> Any:
    """The hint X of Optional[X]."""
    parts = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType) and len(parts) == _TWO and type(None) in parts:
        return next(each for each in parts if each is not type(None))
    return hint


def _codec(name: str | None, hint: Any, *, is_input: bool) -> Any:
    codec = find_input_codec(type_hint=hint) or find_request_codec(type_hint=hint)
    if codec is None:
        raise CodecNotFound(name=name, payload_type=str(hint), is_input=is_input)
    return codec


def _is(codec: Any, kind: type) -> bool:
    return issubclass(codec, kind) if isinstance(codec, type) else isinstance(codec, kind)


def decode_args(predict: Callable[..., Awaitable[Any]]) -> Callable[[Any, InferenceRequest], Awaitable[InferenceResponse]]:
    """A `predict` of a request that calls the function. A decorator."""
    codec = SignatureCodec(predict)

    @wraps(predict)
    async def answer(self: Any, request: InferenceRequest) -> InferenceResponse:
        outputs = await predict(self, **codec.decode_request(request))
        return codec.encode_response(self.name, outputs, self.version)

    return answer
