"""Texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, List  # noqa: UP035  # what models are annotated with

from ..types import Parameters, RequestInput, ResponseOutput
from .base import InputCodec, register_input_codec, register_request_codec
from .utils import SingleInputRequestCodec, elements_of


def encode_str(elem: str) -> bytes:
    """Its bytes."""
    return elem.encode()


def decode_str(encoded: Any, str_codec: str = "utf-8") -> Any:
    """A text of bytes or text; None stays None, all else is empty."""
    if isinstance(encoded, bytes):
        return encoded.decode(str_codec)
    return encoded if encoded is None or isinstance(encoded, str) else ""


def is_list_of(payload: Any, kind: type) -> bool:
    """Returns True for a list with nothing but `kind`."""
    return isinstance(payload, list) and all(isinstance(each, kind) for each in payload)


def column(name: str, elements: Sequence[Any], content_type: str) -> ResponseOutput:
    """BYTES, one in each row."""
    return ResponseOutput(
        name=name,
        datatype="BYTES",
        shape=[len(elements), 1],
        data=list(elements),
        parameters=Parameters(content_type=content_type),
    )


@register_input_codec
class StringCodec(InputCodec):
    """A list of texts."""

    ContentType = "str"
    TypeHint = List[str]  # noqa: UP006

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """As InputCodec."""
        return is_list_of(payload, str)

    @classmethod
    def encode_output(cls, name: str, payload: Sequence[str], use_bytes: bool = True, **kwargs: Any) -> ResponseOutput:
        """As InputCodec."""
        return column(name, [encode_str(each) if use_bytes else each for each in payload], cls.ContentType)

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> list[str]:
        """As InputCodec."""
        return [decode_str(each) for each in elements_of(request_input)]


@register_request_codec
class StringRequestCodec(SingleInputRequestCodec):
    """A request of one list of texts."""

    InputCodec = StringCodec
    ContentType = StringCodec.ContentType
    TypeHint = List[str]  # noqa: UP006
