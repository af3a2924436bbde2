"""Errors of codecs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import MLServerError
from ..types import RequestInput


class CodecNotFound(MLServerError):
    """No codec for a value."""

    def __init__(
        self,
        name: str | None = None,
        payload_type: str | None = None,
        is_input: bool = False,
        is_request: bool = False,
    ) -> None:
        place = ("input " if is_input else "output ") + (("request" if is_input else "response") if is_request else "field")
        about = [f"name '{name}'"] if name else []
        about += [f"type {payload_type}"] if payload_type else []
        super().__init__(f"Codec not found for {place} {'with ' if about else ''}{' and '.join(about)}")


class CodecError(MLServerError):
    """A value that a codec cannot read or write."""

    def __init__(self, msg: str) -> None:
        super().__init__(f"There was an error encoding / decoding the payload: {msg}")


class OutputNotFound(MLServerError):
    """A value that is returned where the type hint says another type, or none."""

    def __init__(self, output_idx: int, output_type: type, output_hints: Sequence[object]) -> None:
        expected = ", ".join(f"'{each}'" for each in output_hints)
        super().__init__(
            f"Unexpected output value at position '{output_idx}' ({output_type}). Expected outputs are {expected} outputs."
        )


class InputsNotFound(MLServerError):
    """Inputs that no argument takes."""

    def __init__(self, inputs: Sequence[RequestInput], input_hints: Iterable[str]) -> None:
        names = ", ".join(f"'{each.name}'" for each in inputs)
        available = ", ".join(f"'{each}'" for each in input_hints)
        super().__init__(f"Input {names} was not found. Available inputs are {available}.")
