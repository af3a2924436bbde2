"""pb_utils.InferenceTrace."""

from __future__ import annotations


class InferenceTrace:
    """The trace that a request belongs to; to be handed on to requests that the model makes (`trace=request.trace()`)."""

    __slots__ = ("_context",)

    def __init__(self, context: str = "") -> None:
        self._context = context

    def get_context(self) -> str | None:
        """The trace's context as W3C headers in a JSON object; None when the request is not traced."""
        return self._context or None


NOT_TRACED = InferenceTrace()
"""Of every request: this server traces none yet."""
