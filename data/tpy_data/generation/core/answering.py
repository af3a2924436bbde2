"""Answer: what one request has generated and not been sent: deltas are joined until there is room for them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from tpy.backend.engine import Delta, Logprob
from tpy.backend.execution import ExecutionResult
from tpy.errors import TpyError
from tpy.messages import DataType, Tensor
from tpy_data.generation.core.asking import Asked


class _Sequence:
    """One of the sequences: what was not sent of it."""

    __slots__ = ("finish_reason", "logprob", "logprobs", "text", "tokens")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.tokens = 0
        self.logprob = 0.0
        """Of all its tokens, sent or not."""
        self.logprobs: list[Mapping[int, Logprob]] | None = None
        self.finish_reason: str | None = None


class GeneratedAnswer:
    """The answer to one request. `add` what a step has generated, then `take` what is to be sent: the pieces of a stream while
    there is room for them, joined where there was no room, and in any case the last one, which has all that is left. Without a
    stream there is one response.

    `tokens` and `prompt_tokens` are those so far. `is_finished`: nothing more comes.
    """

    __slots__ = ("_asked", "_is_first", "_open", "_pending", "_sequences", "error", "prompt_tokens", "tokens")

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._sequences = [_Sequence() for _ in range(asked.request.n)]
        self._open = asked.request.n
        self._is_first = True
        self._pending = False
        self.error: TpyError | None = None
        self.tokens = 0
        self.prompt_tokens = 0

    @property
    def is_finished(self) -> bool:
        """True when every sequence has ended, or the request has failed."""
        return not self._open or self.error is not None

    @property
    def sequences(self) -> int:
        """The number of sequences that have not ended."""
        return 0 if self.is_finished else self._open

    def add(self, delta: Delta) -> None:
        """A step has brought this. What comes for a sequence after its end is ignored."""
        if delta.error is not None:
            self.error = delta.error
            return
        sequence = self._sequences[delta.sequence]
        if sequence.finish_reason is not None:
            return
        self.prompt_tokens = delta.prompt_tokens or self.prompt_tokens
        self.tokens += delta.tokens
        sequence.tokens += delta.tokens
        sequence.logprob += delta.logprob
        if delta.text:
            sequence.text.append(delta.text)
            self._pending = True
        if delta.logprobs is not None:
            sequence.logprobs = [*(sequence.logprobs or ()), *delta.logprobs]
        if delta.finish_reason is not None:
            sequence.finish_reason = delta.finish_reason
            self._open -= 1
            self._pending = True

    def take(self, *, has_room: bool) -> ExecutionResult | None:
        """The response to send now, the last one if `is_finished`; None for none."""
        if self.error is not None:
            return ExecutionResult(error=self.error)
        if self._open and not (self._asked.stream and has_room and self._pending):
            return None
        result = ExecutionResult(self._outputs())
        self._is_first = self._pending = False
        for sequence in self._sequences:
            sequence.text.clear()
            sequence.tokens = 0
            sequence.logprobs = None
        return result

    def _outputs(self) -> list[Tensor]:
        asked, sequences = self._asked, self._sequences
        prefix = asked.request.prompt if self._is_first and asked.repeats_prompt else ""
        outputs = [_texts("text_output", [prefix + "".join(each.text) for each in sequences])]
        for name in asked.returns:
            match name:
                case "finish_reason":
                    outputs.append(_texts(name, [str(each.finish_reason) for each in sequences]))
                case "cumulative_logprob":
                    sums = np.array([each.logprob for each in sequences], np.float32)
                    outputs.append(Tensor(name, DataType.FP32, sums))
                case "logprobs":
                    outputs.append(_texts(name, [_logprobs(each.logprobs) for each in sequences]))
                case "num_input_tokens":
                    outputs.append(_counts(name, [self.prompt_tokens]))
                case _:
                    outputs.append(_counts(name, [each.tokens for each in sequences]))
        return outputs


def _texts(name: str, texts: list[str]) -> Tensor:
    array = np.empty(len(texts), object)
    array[:] = [text.encode("utf-8", "replace") for text in texts]
    return Tensor(name, DataType.BYTES, array)


def _counts(name: str, counts: list[int]) -> Tensor:
    return Tensor(name, DataType.UINT32, np.array(counts, np.uint32))


def _logprobs(logprobs: list[Mapping[int, Logprob]] | None) -> str:
    """As vllm_backend writes them: for each token an object, by the numbers of the tokens."""
    if logprobs is None:
        return "null"
    return json.dumps(
        [
            {token: {"logprob": each.logprob, "rank": each.rank, "decoded_token": each.text} for token, each in entry.items()}
            for entry in logprobs
        ]
    )
