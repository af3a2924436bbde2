"""Times, as ISO 8601 on the way."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, List, Union  # noqa: UP035  # what models are annotated with

from ..types import RequestInput, ResponseOutput
from .base import InputCodec, register_input_codec
from .string import column, is_list_of
from .utils import elements_of


@register_input_codec
class DatetimeCodec(InputCodec):
    """A list of times."""

    ContentType = "datetime"
    TypeHint = List[Union[str, datetime]]  # noqa: UP006, UP007

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """As InputCodec."""
        return is_list_of(payload, datetime)

    @classmethod
    def encode_output(cls, name: str, payload: Sequence[str | datetime], use_bytes: bool = True, **kwargs: Any) -> ResponseOutput:
        """As InputCodec."""
        texts = [each if isinstance(each, str) else each.isoformat() for each in payload]
        return column(name, [each.encode("ascii") if use_bytes else each for each in texts], cls.ContentType)

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> list[datetime]:
        """As InputCodec."""
        texts = (each if isinstance(each, str) else each.decode("ascii") for each in elements_of(request_input))
        return [datetime.fromisoformat(each) for each in texts]
