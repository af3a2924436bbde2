"""pb_utils.InferenceTrace."""

from __future__ import annotations


class InferenceTrace:
    """The trace that a request belongs to; to be handed on to requests that the model makes (`trace=request.trace()`)."""

    __slots__ = ("_context", "_number")

    def __init__(self, context: str = "", number: int = 0) -> None:
        self._context = context
        self._number = number

    def get_context(self) -> str | None:
        """The trace's context as W3C headers in a JSON object, in mode opentelemetry; None when the request is not traced."""
        return self._context or None


def number_of(trace: InferenceTrace) -> int:
    """The number by which the server knows the request that it is of, 0 for none."""
    return trace._number


NOT_TRACED = InferenceTrace()
"""The trace of requests that are not traced."""
