"""The tokens in answers of OpenAI's API: their number, and which events of a stream bring some."""

from __future__ import annotations

from typing import Any

import orjson

from tpy_tools.load.core.answers import TokenCounts


class TokenEvents:
    """Reads the events of one answer after another."""

    def __init__(self) -> None:
        self._pieces = 0
        self._told: TokenCounts | None = None

    def brings_tokens(self, event: bytes) -> bool:
        """Returns True for an event with text, or a call of a tool; False for one that only begins, ends or counts."""
        try:
            document: Any = orjson.loads(event.partition(b"data:")[2] or event)
            self._told = _tokens(document) or self._told
            brings = any(_has_text(choice) for choice in document["choices"])
        except (ValueError, TypeError, KeyError, AttributeError):
            brings = True  # of another form
        self._pieces += brings
        return brings

    def end(self) -> TokenCounts:
        """The answer has ended. Returns the numbers that the server told, or else that of the events with tokens."""
        found = self._told or TokenCounts(0, self._pieces)
        self._pieces, self._told = 0, None
        return found


def tokens_of(body: bytes) -> TokenCounts | None:
    """The numbers in a whole answer; None if it has no numbers."""
    try:
        return _tokens(orjson.loads(body))
    except (ValueError, TypeError, AttributeError):
        return None


def _tokens(document: Any) -> TokenCounts | None:
    usage = document.get("usage")
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    return TokenCounts(prompt, completion) if isinstance(prompt, int) and isinstance(completion, int) else None


def _has_text(choice: Any) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("tool_calls") or delta.get("reasoning_content"))
