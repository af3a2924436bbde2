"""Answers from the responses to the requests of all choices: whole, or as the events of a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence

import msgspec
import trio

from tpy import limits
from tpy.errors import InvalidArgument, TpyError
from tpy.frontends.http.codec import is_large
from tpy.frontends.http.generate import Arrival, GenerateResponses
from tpy.frontends.http.infer import unexpected_error
from tpy.frontends.http.message import PIECE_BYTES_MAX
from tpy.frontends.threads import run_in_thread
from tpy.messages import InferenceResponse
from tpy.units import KIB
from tpy_platforms.openai import answers
from tpy_platforms.openai.answers import AnswerMembers
from tpy_platforms.openai.choices import Choice, ChoiceBuilder, ChoiceReader, Piece, TokenUsage
from tpy_platforms.openai.tools import Json, ToolUse

_EVENT_CHARACTERS = 64 * KIB
"""A longer text of a stream is several events."""
_TOKEN_CHARACTERS = 256
"""Of the JSON for a token's probability, about."""


class AnswerForm(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that the client gets: for each prompt the `choices` best of `asks`. `top_logprobs` None: without probabilities.
    `before`: texts that come before those of the choices, one for each prompt, or none."""

    choices: int
    asks: int
    top_logprobs: int | None
    tools: ToolUse
    before: Sequence[str] = ()

    def reader(self, index: int) -> ChoiceReader:
        """The reader of an answer to the request with this number."""
        before = self.before[index // self.asks] if self.before else ""
        return ChoiceReader(self.tools, top_logprobs=self.top_logprobs, before=before)


async def whole_answer(
    begun: Sequence[GenerateResponses], form: AnswerForm, threads: trio.CapacityLimiter
) -> tuple[list[Choice], Json | None]:
    """All choices, and the counts if the model tells them. Raises the first error."""
    found: list[Choice] = []
    usage = TokenUsage(form.asks)
    size = 0
    for index, responses in enumerate(begun):
        reader, builder = form.reader(index), ChoiceBuilder()
        while lot := await responses.wait():
            await trio.lowlevel.checkpoint()
            for response in lot:
                builder.add(await _read(reader, response, threads))
                if size + builder.size + _TOKEN_CHARACTERS * len(reader.logprobs) > limits.OPENAI_TEXT_CHARACTERS_MAX:
                    raise InvalidArgument(f"the answer exceeds {limits.OPENAI_TEXT_CHARACTERS_MAX} characters: ask for a stream")
        builder.add(reader.end())
        choice = builder.whole(index, reader, logprobs=form.top_logprobs is not None)
        size += size_of(choice)
        usage.add(index, reader)
        found.append(choice)
    return _best(found, form), usage.document()


def size_of(choice: Choice) -> int:
    """The size of a choice in an answer, in characters, about."""
    arguments = sum(len(call["function"]["arguments"]) for call in choice.calls)
    return len(choice.text) + arguments + _TOKEN_CHARACTERS * len(choice.logprobs or ())


def _best(found: list[Choice], form: AnswerForm) -> list[Choice]:
    """For each prompt the likeliest choices, the best first, as OpenAI has it."""
    if form.asks == form.choices:
        return found
    kept: list[Choice] = []
    for first in range(0, len(found), form.asks):
        ranked = sorted(found[first : first + form.asks], key=lambda choice: -choice.likelihood)
        kept += ranked[: form.choices]
    return [msgspec.structs.replace(choice, index=index) for index, choice in enumerate(kept)]


async def _read(reader: ChoiceReader, response: InferenceResponse, threads: trio.CapacityLimiter) -> list[Piece]:
    """The pieces of a response; a long one is read in a thread. Raises what the reader raises."""
    if is_large(response.outputs):
        return await run_in_thread(reader.read, response, limiter=threads)
    return reader.read(response)


class _Stream:
    """One choice of a stream."""

    def __init__(self, index: int, responses: GenerateResponses, reader: ChoiceReader) -> None:
        self.index = index
        self.responses = responses
        self.reader = reader
        self.offset = 0
        """Characters of tokens that have been reported."""


class AnswerEvents:
    """The events of one answer. `begin` waits for the first response, whose error is the status of the reply."""

    def __init__(
        self,
        begun: Sequence[GenerateResponses],
        arrival: Arrival,
        answer: AnswerMembers,
        form: AnswerForm,
        path: str,
        threads: trio.CapacityLimiter,
    ) -> None:
        self._all = begun
        self._open = [_Stream(index, responses, form.reader(index)) for index, responses in enumerate(begun)]
        self._arrival = arrival
        self._answer = answer
        self._path = path
        self._threads = threads
        self._usage = TokenUsage(form.asks)
        self._waiting: deque[bytes] = deque()
        """Events."""

    async def begin(self) -> None:
        """Wait for the first response. Raises its error."""
        lots = await self._wait()
        for _, lot in lots:
            if lot and lot[0].error is not None:
                raise lot[0].error
        self._waiting += [self._answer.begun(stream.index) for stream in self._open]
        await self._take(lots)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._waiting:
            if not self._open:
                raise StopAsyncIteration
            await self._take(await self._wait())
        events, size = [], 0
        while self._waiting and size < PIECE_BYTES_MAX:
            events.append(self._waiting.popleft())
            size += len(events[-1])
        return b"".join(events)

    def close(self) -> None:
        """Nobody reads any more."""
        for responses in self._all:
            responses.cancel()

    async def _wait(self) -> list[tuple[_Stream, list[InferenceResponse]]]:
        """The responses that have come for any of the choices that have not ended."""
        while True:
            found = [(stream, lot) for stream in self._open if (lot := stream.responses.take()) is not None]
            if found:
                return found
            await self._arrival.wait()

    async def _take(self, lots: list[tuple[_Stream, list[InferenceResponse]]]) -> None:
        """Queue the events of some responses. An error is the last event."""
        try:
            for stream, lot in lots:
                for response in lot:
                    self._add(stream, await _read(stream.reader, response, self._threads))
                if not lot:
                    self._end(stream)
        except TpyError as error:
            self._fail(error)
        except Exception:
            self._fail(unexpected_error(self._path))

    def _add(self, stream: _Stream, pieces: list[Piece]) -> None:
        usage = self._usage_of(stream)
        for piece in pieces:
            if not isinstance(piece, str):
                self._waiting.append(self._answer.piece(stream.index, piece, usage=usage))
                continue
            for at in range(0, len(piece), _EVENT_CHARACTERS):
                text = piece[at : at + _EVENT_CHARACTERS]
                logprobs, stream.reader.logprobs = stream.reader.logprobs, []
                self._waiting.append(self._answer.piece(stream.index, text, logprobs, stream.offset, usage))
                stream.offset += sum(len(each.chosen.token) for each in logprobs)

    def _end(self, stream: _Stream) -> None:
        self._add(stream, stream.reader.end())
        reader, usage = stream.reader, self._usage_of(stream)
        self._waiting.append(self._answer.finished(stream.index, reader.finish_reason, reader.logprobs, stream.offset, usage))
        self._usage.add(stream.index, reader)
        self._open.remove(stream)
        if not self._open:
            if self._answer.says_usage:
                self._waiting.append(self._answer.counted(self._usage.document()))
            self._waiting.append(answers.DONE)

    def _usage_of(self, stream: _Stream) -> Json | None:
        if not self._answer.says_counts:
            return None
        usage = TokenUsage(1)
        usage.add(0, stream.reader)
        return usage.document()

    def _fail(self, error: TpyError) -> None:
        self._waiting.append(answers.error_event(error))
        self._open.clear()
        self.close()
