"""Bytes, in base64 on the way."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, List  # noqa: UP035  # what models are annotated with

from ..types import RequestInput, ResponseOutput
from .base import InputCodec, register_input_codec
from .string import column, is_list_of
from .utils import elements_of


def _bytes(element: str | bytes) -> bytes:
    return element.encode("ascii") if isinstance(element, str) else element


def _decoded(element: str | bytes) -> bytes:
    """The bytes; as in MLServer, an element that is not base64 stands for itself."""
    try:
        return base64.b64decode(_bytes(element), validate=True)
    except binascii.Error:
        return _bytes(element)


@register_input_codec
class Base64Codec(InputCodec):
    """A list of bytes."""

    ContentType = "base64"
    TypeHint = List[bytes]  # noqa: UP006

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """As InputCodec."""
        return is_list_of(payload, bytes)

    @classmethod
    def encode_output(cls, name: str, payload: Sequence[bytes], use_bytes: bool = True, **kwargs: Any) -> ResponseOutput:
        """As InputCodec."""
        encoded = [base64.b64encode(_bytes(each)) for each in payload]
        return column(name, encoded if use_bytes else [each.decode("ascii") for each in encoded], cls.ContentType)

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> list[bytes]:
        """As InputCodec."""
        return [_decoded(each) for each in elements_of(request_input)]
