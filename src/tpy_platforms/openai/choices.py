"""One choice of an answer: read from the responses to its request, piece by piece."""

from __future__ import annotations

from typing import Final
from uuid import uuid4

import msgspec

from tpy.messages import InferenceResponse
from tpy_platforms.openai.core.tool_calls import CallBegun, Found
from tpy_platforms.openai.logprobs import TokenLogprobs, read_logprobs
from tpy_platforms.openai.models import ResponseReader
from tpy_platforms.openai.tools import Json, ToolUse

TOOL_CALLS: Final = "tool_calls"
"""The finish reason of an answer with calls of tools."""

_ID_CHARACTERS: Final = 9
"""Mistral's templates take no other ids."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a call of a tool, the `number`th of its choice."""

    number: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True, kw_only=True):
    """More of the arguments of a call, which are JSON."""

    number: int
    text: str


Piece = str | ToolCall | CallArguments
"""A piece of a choice; `str` is text."""


class ChoiceReader:
    """Reads one choice. `top_logprobs` None: nobody wants to know the probabilities of its tokens; `before`: text before its
    own."""

    def __init__(self, tools: ToolUse, *, top_logprobs: int | None, before: str = "") -> None:
        self._reader = ResponseReader()
        self._calls = tools.reader()
        self._tools = tools
        self._top_logprobs = top_logprobs
        self._before = before
        self._number = -1
        self.logprobs: list[TokenLogprobs] = []
        """Of the tokens that were read; whoever reports them takes them away."""

    def read(self, response: InferenceResponse) -> list[Piece]:
        """The pieces that are certain with a response. Raises its error, and Internal for one that cannot be read."""
        text = self._reader.text(response)
        if self._top_logprobs is not None:
            self.logprobs += read_logprobs(response.model_name, self._reader.logprobs, self._top_logprobs)
        self._reader.logprobs.clear()
        return self._pieces(self._calls.add(text))

    def end(self) -> list[Piece]:
        """The last pieces."""
        return self._pieces([*self._calls.add(self._reader.rest()), *self._calls.end()])

    @property
    def finish_reason(self) -> str:
        """The reason for its end. As OpenAI's a choice with calls says so, but where the client named the function."""
        reason = self._reader.finish_reason
        return TOOL_CALLS if self._number >= 0 and reason == "stop" and not self._tools.function else reason

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """The tokens of the prompt and of the choice, where the model tells them."""
        return self._reader.prompt_tokens, self._reader.completion_tokens

    @property
    def likelihood(self) -> float:
        """The logarithm of the probability of its text, for each token."""
        return self._reader.cumulative_logprob / max(1, self._reader.completion_tokens or 1)

    def _pieces(self, found: list[Found]) -> list[Piece]:
        before, self._before = self._before, ""
        pieces: list[Piece] = [before] if before else []
        for each in found:
            if isinstance(each, CallBegun):
                self._number += 1
            if isinstance(each, str):
                pieces.append(each)
            elif self._number and self._tools.one_call:
                continue
            elif isinstance(each, CallBegun):
                pieces.append(ToolCall(number=self._number, id=uuid4().hex[:_ID_CHARACTERS], name=each.name))
            else:
                pieces.append(CallArguments(number=self._number, text=each.text))
        return pieces


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A whole choice."""

    index: int
    text: str
    finish_reason: str
    calls: list[Json]
    logprobs: list[TokenLogprobs] | None
    likelihood: float = 0.0


class ChoiceBuilder:
    """Puts the pieces of a choice together."""

    def __init__(self) -> None:
        self.size = 0
        """In characters."""
        self._texts: list[str] = []
        self._calls: list[tuple[ToolCall, list[str]]] = []

    def add(self, pieces: list[Piece]) -> None:
        """Take some pieces."""
        for piece in pieces:
            if isinstance(piece, ToolCall):
                self._calls.append((piece, []))
                self.size += len(piece.name)
            else:
                into = self._texts if isinstance(piece, str) else self._calls[-1][1]
                text = piece if isinstance(piece, str) else piece.text
                into.append(text)
                self.size += len(text)

    def whole(self, index: int, reader: ChoiceReader, *, logprobs: bool) -> Choice:
        """The choice."""
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(arguments)}}
            for call, arguments in self._calls
        ]
        return Choice(
            index=index,
            text="".join(self._texts),
            finish_reason=reader.finish_reason,
            calls=calls,
            logprobs=reader.logprobs if logprobs else None,
            likelihood=reader.likelihood,
        )


class TokenUsage:
    """Adds up the tokens of an answer: those of a prompt once, however many choices it has."""

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._prompt_tokens: int | None = 0
        self._completion_tokens: int | None = 0

    def add(self, index: int, reader: ChoiceReader) -> None:
        """Count the choice with this number."""
        prompt, completion = reader.counts
        if index % self._choices == 0:
            self._prompt_tokens = None if prompt is None or self._prompt_tokens is None else self._prompt_tokens + prompt
        completed = self._completion_tokens
        self._completion_tokens = None if completion is None or completed is None else completed + completion

    def document(self) -> Json | None:
        """The member `usage`; None where the model does not tell."""
        if self._prompt_tokens is None or self._completion_tokens is None:
            return None
        total = self._prompt_tokens + self._completion_tokens
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": self._completion_tokens, "total_tokens": total}
