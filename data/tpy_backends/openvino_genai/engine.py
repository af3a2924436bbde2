"""GenAiEngine: OpenVINO GenAI's ContinuousBatchingPipeline as an engine."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
import openvino_genai as genai

from tpy.backend.engine import Delta, EngineLimits, EngineLoad, EngineRequest, Logprob
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable
from tpy_backends.openvino_genai.model_folder import LanguageModelFacts
from tpy_backends.openvino_genai.sampling import (
    generation_config,
    grammar_of,
    is_of_inference,
    keeps_stop,
    reason_of,
    refusal_of,
)
from tpy_backends.openvino_genai.settings import EngineSettings
from tpy_backends.openvino_genai.text import TextOfTokens, TokenTexts
from tpy_data.generation.core.values import stop_strings

_REASONS: Final = {genai.GenerationFinishReason.LENGTH: "length", genai.GenerationFinishReason.STOP: "stop"}
_ESTIMATED_CHARACTERS: Final = 4096
_GRAMMARS_MAX: Final = 1024
_RUNNING: Final = genai.GenerationStatus.RUNNING
_IGNORED: Final = genai.GenerationStatus.IGNORED


class _Sequence:
    """One sequence. `tokens` are the prompt's and what was generated, `handle` is the pipeline's for it. `grammar` "": no
    grammar."""

    __slots__ = (
        "config",
        "grammar",
        "handle",
        "index",
        "logprobs",
        "max_tokens",
        "prompt_tokens",
        "request_id",
        "text",
        "tokens",
    )

    def __init__(
        self, request: EngineRequest, index: int, tokens: list[int], config: genai.GenerationConfig, text: TextOfTokens
    ) -> None:
        self.request_id = request.id
        self.index = index
        self.tokens = list(tokens)
        self.prompt_tokens = len(tokens)
        self.config = config
        self.max_tokens = config.max_new_tokens
        self.text = text
        self.logprobs = request.logprobs
        self.grammar = grammar_of(request)
        self.handle: Any = None


class GenAiEngine:
    """An `Engine`. Each sequence of a request is a request to the pipeline, so that all of them come in pieces.

    A grammar is compiled in the pipeline's step, which raises for one that cannot be, and leaves the pipeline with half a step.
    So a sequence with a grammar that was not compiled before joins alone; when a step raises then, that sequence is the reason,
    and the others join anew, with what they have generated as a part of their prompts.
    """

    def __init__(self, facts: LanguageModelFacts, device: str, settings: EngineSettings, properties: dict[str, object]) -> None:
        """Raises InvalidArgument for a model that OpenVINO GenAI does not know."""
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = settings.num_kv_blocks
        scheduler.max_num_seqs = settings.max_num_seqs
        scheduler.max_num_batched_tokens = settings.max_num_batched_tokens
        scheduler.enable_prefix_caching = settings.enable_prefix_caching
        scheduler.dynamic_split_fuse = settings.dynamic_split_fuse
        path = str(facts.path)
        self._vocabulary = facts.vocabulary
        try:
            self._pipeline = genai.ContinuousBatchingPipeline(path, scheduler, device, properties)
        except RuntimeError as error:
            raise InvalidArgument(f"OpenVINO GenAI {genai.__version__} cannot load '{path}': {error}") from None
        self._settings = settings
        self._tokenizer = self._pipeline.get_tokenizer()
        self._texts = TokenTexts(self._decode_together, self._encode, facts.vocabulary, self._show_together)
        self._decoded: dict[tuple[int, ...], str] = {}
        """The texts of this step that had to be decoded: those of all sequences together take hardly longer than one."""
        self._defaults = self._pipeline.get_config()
        if not 0 <= self._defaults.eos_token_id < 2**31:
            self._defaults.set_eos_token_id(self._tokenizer.get_eos_token_id())
        self._bos = self._tokenizer.get_bos_token_id()
        self._bos_text = self._tokenizer.get_bos_token()
        self._sequences: list[_Sequence] = []
        """In the pipeline."""
        self._waiting: deque[_Sequence] = deque()
        """Until there is room: the pipeline itself runs any number. And with a grammar that was not compiled before, behind
        another one."""
        self._compiled: OrderedDict[str, None] = OrderedDict()
        self._numbers = 0
        self._load = EngineLoad(kv_blocks_total=settings.num_kv_blocks)

    def limits(self) -> EngineLimits:
        """As `Engine.limits`."""
        return EngineLimits(sequences=self._settings.max_num_seqs, tokens=self._settings.tokens)

    def add(self, request: EngineRequest) -> None:
        """As `Engine.add`."""
        tokens = self._tokens_of(request)
        longest = self._settings.max_model_len
        if len(tokens) >= longest:
            count = str(len(tokens)) if request.prompt_token_ids is not None else f"about {self._estimate(request.prompt)}"
            raise InvalidArgument(
                f"the prompt has {count} tokens, at most {longest - 1} are taken: prompt and answer may have {longest} together"
            )
        stops = stop_strings(request.sampling)
        keeps = keeps_stop(request)
        try:
            configs = [generation_config(request, self._defaults, index) for index in range(request.n)]
            for config in configs:
                config.max_new_tokens = min(config.max_new_tokens, longest - len(tokens))
                config.validate()
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(f"the engine refuses the request: {reason_of(error)}") from None
        for index, config in enumerate(configs):
            text = TextOfTokens(self._decode, stops, keeps_stop=keeps)
            self._waiting.append(_Sequence(request, index, tokens, config, text))

    def cancel(self, request_id: int) -> None:
        """As `Engine.cancel`."""
        self._waiting = deque([each for each in self._waiting if each.request_id != request_id])
        for sequence in self._sequences:
            if sequence.request_id == request_id:
                sequence.handle.cancel()
        self._sequences = [each for each in self._sequences if each.request_id != request_id]
        self._release()

    def step(self) -> Sequence[Delta]:
        """As `Engine.step`."""
        refused = self._join_waiting()
        try:
            self._pipeline.step()
        except RuntimeError as error:
            return [*refused, *self._refuse_unproven(error)]
        metrics = self._pipeline.get_metrics()
        self._load = EngineLoad(
            running=len(self._sequences),
            waiting=len(self._waiting),
            kv_blocks_used=round(metrics.cache_usage * self._settings.num_kv_blocks / 100),
            kv_blocks_total=self._settings.num_kv_blocks,
        )
        found = [(each, _new_of(each)) for each in self._sequences]
        self._decode_all([(each, new.tokens) for each, new in found if new.tokens])
        deltas = [delta for each, new in found if (delta := self._delta(each, new)) is not None]
        self._release()
        return [*refused, *deltas]

    def load(self) -> EngineLoad:
        """As `Engine.load`."""
        return self._load

    def close(self) -> None:
        """As `Engine.close`."""
        self._waiting.clear()
        for sequence in self._sequences:
            sequence.handle.cancel()
        self._sequences.clear()
        self._release()

    def _join_waiting(self) -> list[Delta]:
        """Adds the sequences that there is room for. Returns the errors of the sequences that the pipeline refuses."""
        refused = []
        while self._waiting and len(self._sequences) < self._settings.max_num_seqs:
            first = self._waiting[0]
            if not self._is_proven(first) and not all(self._is_proven(each) for each in self._sequences):
                break
            self._waiting.popleft()
            try:
                self._join(first)
            except RuntimeError as error:
                refused.append(
                    Delta(first.request_id, error=InvalidArgument(f"the engine refuses the request: {reason_of(error)}"))
                )
        return refused

    def _join(self, sequence: _Sequence) -> None:
        """The sequence takes part in the next step."""
        self._numbers += 1
        generated = len(sequence.tokens) - sequence.prompt_tokens
        sequence.config.max_new_tokens = sequence.max_tokens - generated
        tokens = ov.Tensor(np.array([sequence.tokens], np.int64))
        sequence.handle = self._pipeline.add_request(self._numbers, tokens, sequence.config)
        self._sequences.append(sequence)

    def _is_proven(self, sequence: _Sequence) -> bool:
        """Returns True if the sequence has no grammar, or one that was compiled before."""
        return not sequence.grammar or sequence.grammar in self._compiled

    def _tokens_of(self, request: EngineRequest) -> list[int]:
        if request.prompt_token_ids is not None:
            largest = max(request.prompt_token_ids)
            if largest >= self._vocabulary:
                raise InvalidArgument(f"'prompt_token_ids' has the token {largest}, the model knows {self._vocabulary}")
            return list(request.prompt_token_ids)
        tokens = self._encode(request.prompt) if request.prompt else []
        if len(tokens) > 1 and tokens[0] == tokens[1] == self._bos and request.prompt.startswith(self._bos_text):
            del tokens[0]  # the chat template has written it already
        if not tokens:
            raise InvalidArgument("the prompt is empty")
        return tokens

    def _decode_all(self, found: list[tuple[_Sequence, list[int]]]) -> None:
        """Decode together what will be asked for of these sequences with their new tokens."""
        wanted = {tuple(part) for each, tokens in found for part in each.text.parts(tokens) if part}
        wanted |= {(token,) for each, tokens in found if each.logprobs for token in tokens}
        parts = [part for part in wanted if self._texts.text_of(part) is None]
        self._decoded = dict(zip(parts, self._decode_together([list(part) for part in parts]), strict=True)) if parts else {}

    def _decode(self, tokens: list[int]) -> str:
        text = self._texts.text_of(tokens)
        if text is None:
            text = self._decoded.get(tuple(tokens))
        return str(self._tokenizer.decode(tokens)) if text is None else text

    def _decode_together(self, texts: list[list[int]]) -> list[str]:
        decoded: list[str] = self._tokenizer.decode(texts)
        return decoded

    def _show_together(self, texts: list[list[int]]) -> list[str]:
        """With special tokens."""
        shown: list[str] = self._tokenizer.decode(texts, skip_special_tokens=False)
        return shown

    def _encode(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(text).input_ids.data[0].tolist()
        return tokens

    def _estimate(self, prompt: str) -> int:
        """The tokens of a prompt that is too long: the tokenizer cuts it at the length that the model was made for."""
        part = prompt[:_ESTIMATED_CHARACTERS]
        return len(self._tokenizer.encode(part).input_ids.data[0]) * len(prompt) // len(part)

    def _delta(self, sequence: _Sequence, new: _New) -> Delta | None:
        """Returns what the last step has added to it, None for nothing."""
        tokens, logprobs, reason = new
        handle = sequence.handle
        status = handle.get_status()
        error: TpyError | None = None
        if status is not _RUNNING and reason is None:
            if status == _IGNORED:
                error = Unavailable("the KV cache has too few blocks left for the request")
            elif status != _RUNNING:
                reason = "stop"
        if error is not None:
            self._sequences.remove(sequence)
            return Delta(sequence.request_id, error=error)
        if not tokens and reason is None:
            return None
        if sequence.grammar:
            self._compiled[sequence.grammar] = None
            if len(self._compiled) > _GRAMMARS_MAX:
                self._compiled.popitem(last=False)
        sequence.tokens.extend(tokens)
        text = sequence.text.add(tokens, is_last=reason is not None)
        if sequence.text.is_stopped:
            reason = "stop"
            handle.cancel()
        if reason is not None:
            self._sequences.remove(sequence)
        entries = None
        if sequence.logprobs:
            decode = self._decode
            pairs = zip(tokens, logprobs, strict=False)
            entries = [{token: Logprob(logprob, None, decode([token]))} for token, logprob in pairs]
        return Delta(
            sequence.request_id,
            text=text,
            tokens=len(tokens),
            prompt_tokens=sequence.prompt_tokens,
            sequence=sequence.index,
            finish_reason=reason,
            logprobs=entries,
            logprob=sum(logprobs) if sequence.logprobs else 0.0,
        )

    def _refuse_unproven(self, error: RuntimeError) -> Sequence[Delta]:
        """A step has raised: because of a grammar that is new, or the engine is at its end."""
        guilty = next((each for each in self._sequences if not self._is_proven(each)), None)
        if guilty is None or is_of_inference(error):
            raise Internal(f"OpenVINO GenAI failed in a step: {error}") from error
        deltas = [Delta(guilty.request_id, error=refusal_of(error))]
        self._waiting = deque([each for each in self._waiting if each.request_id != guilty.request_id])
        others = [each for each in self._sequences if each.request_id != guilty.request_id]
        for sequence in self._sequences:
            sequence.handle.cancel()
        self._sequences = []
        self._release()
        for sequence in others:
            if sequence.grammar and len(sequence.tokens) > sequence.prompt_tokens:
                text = "the answer was interrupted, as another request's grammar cannot be compiled; try again"
                deltas.append(Delta(sequence.request_id, error=Unavailable(text)))
                continue
            self._join(sequence)
        return deltas

    def _release(self) -> None:
        """Have the pipeline free what was cancelled, which it does in a step, if there is no step to come."""
        if self._sequences:
            return
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        if not self._waiting:
            self._load = EngineLoad(kv_blocks_total=self._settings.num_kv_blocks)


class _New(NamedTuple):
    """The tokens that a step has added to a sequence."""

    tokens: list[int]
    logprobs: list[float]
    reason: str | None


def _new_of(sequence: _Sequence) -> _New:
    tokens: list[int] = []
    logprobs: list[float] = []
    reason: str | None = None
    if sequence.handle.can_read():
        for output in sequence.handle.read().values():  # it has one sequence
            tokens.extend(output.generated_ids)
            logprobs.extend(output.generated_log_probs)
            reason = _REASONS.get(output.finish_reason, reason)
    return _New(tokens, logprobs, reason)
