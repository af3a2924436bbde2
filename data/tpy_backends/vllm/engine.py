"""VllmEngine: vLLM's LLMEngine as an engine. Its core is a process that vLLM starts, as in vLLM's own server: there it binds
threads to processors."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any, Final

from vllm import PoolingParams, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.multimodal.media import ImageMediaIO
from vllm.outputs import PoolingRequestOutput
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.metrics.loggers import StatLoggerBase

from tpy.backend.engine import Delta, EngineLimits, EngineLoad, EngineRequest, Logprob
from tpy.echo import echo
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy_backends.vllm.arguments import EngineArguments, takes_images
from tpy_backends.vllm.images import decoded
from tpy_backends.vllm.pooling import TRUNCATION, pooling_arguments
from tpy_backends.vllm.sampling import adapter_of, sampling_arguments
from tpy_data.exception_text import exception_text
from tpy_data.generation.core.structure import structure_of
from tpy_data.generation.core.values import flag, whole

_LOGS_OF_STATISTICS: Final = "vllm.v1.metrics.loggers"
_BAD_VALUE: Final = (VLLMClientError, ValueError, TypeError, OverflowError, NotImplementedError)


class _Statistics(StatLoggerBase):  # type: ignore[misc]  # vLLM is not there when types are checked
    """The newest figures of vLLM's scheduler, which come with each step."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.running = self.waiting = self.queries = self.hits = self.preemptions = 0
        self.usage = 0.0

    @property
    def is_busy(self) -> bool:
        """True while vLLM's core has requests."""
        return bool(self.running or self.waiting)

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        """As StatLoggerBase."""
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.waiting = scheduler_stats.num_waiting_reqs
            self.usage = scheduler_stats.kv_cache_usage
            self.queries += scheduler_stats.prefix_cache_stats.queries
            self.hits += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        """As StatLoggerBase."""


class _Sequence:
    """One sequence of a request. `logprob` is the sum over its tokens so far."""

    __slots__ = ("index", "logprob", "prompt_tokens", "request_id")

    def __init__(self, request_id: int, index: int, prompt_tokens: int) -> None:
        self.request_id = request_id
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.logprob = 0.0


class VllmEngine:
    """An `Engine`. Each sequence of a request is a request to vLLM: it refuses several of a greedy one."""

    def __init__(self, arguments: EngineArguments, version: str, lost: Callable[[str], None], *, name: str) -> None:
        """`lost` is called, in any thread, when a process of vLLM's has ended by itself: if it was killed, vLLM does not notice,
        and a step that waits for it does not return. Raises InvalidArgument for arguments that vLLM refuses, Unavailable for
        whatever else keeps it from starting."""
        if not arguments.logs_stats:
            logging.getLogger(_LOGS_OF_STATISTICS).setLevel(logging.WARNING)
        self._statistics = _Statistics(None)
        self._name = name
        try:
            self._engine = LLMEngine.from_engine_args(
                EngineArgs(**arguments.engine), stat_loggers=[self._statistics_of], enable_multiprocessing=True
            )
        except _BAD_VALUE as error:
            raise InvalidArgument(
                f"vLLM {version} refuses the model or its arguments: {_text(error)}{_lacking(arguments, error)}"
            ) from error
        except Exception as error:
            raise Unavailable(f"vLLM {version} cannot start: {exception_text(error)}{_lacking(arguments, error)}") from error
        try:
            _require_task(self._engine.get_supported_tasks(), embeds=arguments.embeds)
            self._adapters = {
                name: LoRARequest(name, number, path) for number, (name, path) in enumerate(arguments.adapters.items(), start=1)
            }
        except BaseException:
            self._engine.engine_core.shutdown()
            raise
        config = self._engine.vllm_config
        self._longest: int = config.model_config.max_model_len
        self._vocabulary: int = config.model_config.get_vocab_size()
        self._blocks = max(0, config.cache_config.num_gpu_blocks - 1)  # vLLM keeps one for itself, and an encoder has no other
        self._limits = EngineLimits(
            sequences=config.scheduler_config.max_num_seqs, tokens=self._blocks * config.cache_config.block_size
        )
        self._tokenizer = self._engine.get_tokenizer()
        self._bos_text = str(getattr(self._tokenizer, "bos_token", None) or "")
        self._images = _images_of(self._engine.renderer, config.model_config)
        self._open: dict[str, _Sequence] = {}
        """By the name that vLLM has for it."""
        self._closing = threading.Event()
        threading.Thread(target=self._watch_processes, args=(lost,), name="watch of vLLM", daemon=True).start()

    def limits(self) -> EngineLimits:
        """As `Engine.limits`."""
        return self._limits

    def add(self, request: EngineRequest) -> None:
        """As `Engine.add`."""
        if request.pooling is not None:
            self._add_embedding(request, request.pooling)
            return
        adapter = adapter_of(request, self._adapters)
        arguments = sampling_arguments(request)
        structure = structure_of(request.sampling)
        tokens = self._tokens_of(request)
        self._require_room(len(tokens))
        names = [f"{request.id}.{index}" for index in range(request.n)]
        with self._refusing(names):
            prompt = self._prompt_of(tokens, request.images)
            prompt_tokens = len(prompt["prompt_token_ids"])
            self._require_room(prompt_tokens)
            for index, name in enumerate(names):
                seed = {"seed": arguments["seed"] + index} if index and "seed" in arguments else {}
                parameters = SamplingParams(
                    **{**arguments, **seed},
                    output_kind=RequestOutputKind.DELTA,
                    structured_outputs=None if structure is None else StructuredOutputsParams(**{structure[0]: structure[1]}),
                )
                self._engine.add_request(
                    name,
                    prompt,
                    parameters,
                    lora_request=None if adapter is None else self._adapters[adapter],
                )
                self._open[name] = _Sequence(request.id, index, prompt_tokens)

    def _require_room(self, prompt_tokens: int) -> None:
        if prompt_tokens >= self._longest:
            raise InvalidArgument(
                f"the prompt has {prompt_tokens} tokens, at most {self._longest - 1} are taken: prompt and answer may have "
                f"{self._longest} together"
            )

    def _prompt_of(self, tokens: list[int], images: Sequence[bytes]) -> Any:
        """The prompt as vLLM's engine takes it; with images, it has tokens for them in their places."""
        renderer = self._engine.renderer
        if not images:
            (prompt,) = renderer.render_cmpl([{"prompt_token_ids": tokens}])
            return prompt
        if self._images is None:
            raise InvalidArgument(f"model '{self._name}' takes no images")
        given = {"prompt_token_ids": tokens, "multi_modal_data": {"image": decoded(images, self._images.load_bytes)}}
        try:
            # The other cache leaves out what the core has seen, and a request that is refused here does not get there.
            (prompt,) = renderer.render_cmpl([given], skip_mm_cache=True)
        except AssertionError as error:
            raise InvalidArgument(
                f"the prompt has no place for each of its {len(images)} images: {_text(error)}. The model's placeholder for an "
                "image must be in it as often"
            ) from None
        return prompt

    def _add_embedding(self, request: EngineRequest, settings: Mapping[str, Any]) -> None:
        arguments = pooling_arguments(settings)
        tokens = self._tokens_of(request)
        if len(tokens) > self._longest:
            raise InvalidArgument(f"the prompt has {len(tokens)} tokens, at most {self._longest} are taken")
        name = str(request.id)
        with self._refusing([name]):
            (prompt,) = self._engine.renderer.render_cmpl([{"prompt_token_ids": tokens}])
            self._engine.add_request(name, prompt, PoolingParams(task="embed", **arguments))
            self._open[name] = _Sequence(request.id, 0, len(tokens))

    @contextlib.contextmanager
    def _refusing(self, names: Sequence[str]) -> Iterator[None]:
        """A request that cannot be added is refused as a whole, with all of its sequences."""
        try:
            yield
        except _BAD_VALUE as error:
            self._abort(names)
            raise InvalidArgument(f"the engine refuses the request: {_text(error)}") from None
        except BaseException:
            self._abort(names)
            raise

    def cancel(self, request_id: int) -> None:
        """As `Engine.cancel`."""
        self._abort([name for name, each in self._open.items() if each.request_id == request_id])

    def step(self) -> Sequence[Delta]:
        """As `Engine.step`."""
        deltas: list[Delta] = []
        if not self._open:  # vLLM would wait for a request
            return deltas
        outputs = self._engine.step()
        while self._open and not outputs and not self._statistics.is_busy:  # the end of earlier requests
            outputs = self._engine.step()
        for output in outputs:
            sequence = self._open.get(output.request_id)
            if sequence is None:  # cancelled
                continue
            if isinstance(output, PoolingRequestOutput):
                del self._open[output.request_id]
                deltas.append(_embedding(sequence, output))
                continue
            for part in output.outputs:
                delta = _delta(sequence, part)
                if delta.error is not None or delta.finish_reason is not None:
                    del self._open[output.request_id]
                if delta.tokens or delta.finish_reason is not None or delta.error is not None:
                    deltas.append(delta)
        return deltas

    def load(self) -> EngineLoad:
        """As `Engine.load`. vLLM's next step reports what was cancelled; when nothing is left there is no next step."""
        said, count = self._statistics, len(self._open)
        return EngineLoad(
            running=min(said.running, count),
            waiting=min(said.waiting, count),
            kv_blocks_used=round(said.usage * self._blocks) if count else 0,
            kv_blocks_total=self._blocks,
            prefix_queries=said.queries,
            prefix_hits=said.hits,
            preemptions=said.preemptions,
        )

    def close(self) -> None:
        """As `Engine.close`."""
        self._closing.set()
        self._engine.engine_core.shutdown()

    def _watch_processes(self, lost: Callable[[str], None]) -> None:
        processes = {each.sentinel: each for each in multiprocessing.active_children()}
        for ended in connection.wait(list(processes)) if processes else ():
            process = processes[ended]  # type: ignore[index]  # one of the sentinels waited for
            if not self._closing.is_set():
                lost(f"vLLM's process '{process.name}' has ended")

    def _statistics_of(self, vllm_config: Any, engine_index: int = 0) -> _Statistics:
        """The factory of statistics that vLLM wants."""
        return self._statistics

    def _tokens_of(self, request: EngineRequest) -> list[int]:
        most = self._truncation_of(request)
        if request.prompt_token_ids is not None:
            largest = max(request.prompt_token_ids)
            if largest >= self._vocabulary:
                raise InvalidArgument(f"'prompt_token_ids' has the token {largest}, the model knows {self._vocabulary}")
            given = list(request.prompt_token_ids)
            if most is None or len(given) <= most:
                return given
            return given[-most:] if self._tokenizer.truncation_side == "left" else given[:most]
        # A chat template has written the beginning of the text already; an embedding is made without one.
        is_begun = request.pooling is None and self._bos_text != "" and request.prompt.startswith(self._bos_text)
        asked = flag(request.sampling, "add_special_tokens", default=not is_begun)
        truncation = {} if most is None else {"truncation": True, "max_length": most}
        tokens: list[int] = self._tokenizer.encode(request.prompt, add_special_tokens=asked, **truncation)
        if not tokens:
            raise InvalidArgument("the prompt is empty")
        return tokens

    def _truncation_of(self, request: EngineRequest) -> int | None:
        """The most tokens that the request wants its prompt to have; -1 is as many as the model takes. None: all."""
        settings = request.sampling if request.pooling is None else request.pooling
        value = settings.get(TRUNCATION)
        if value is None:
            return None
        most = self._longest - 1 if request.pooling is None else self._longest
        found = whole({TRUNCATION: value}, TRUNCATION, -1, -1, most)
        if not found:
            raise InvalidArgument(f"'{TRUNCATION}' must be -1, or an integer from 1 to {most}, got 0")
        return most if found < 0 else found

    def _abort(self, names: Iterable[str]) -> None:
        known = [name for name in names if self._open.pop(name, None) is not None]
        if known:
            self._engine.abort_request(known)


def _delta(sequence: _Sequence, part: Any) -> Delta:
    """Returns the tokens that a step has added to the sequence, or its error."""
    reason = part.finish_reason
    if reason in ("error", "abort"):
        return Delta(sequence.request_id, error=Internal(f"vLLM ended the request: {reason}"))
    entries = None
    logprob = 0.0
    if part.logprobs is not None:
        entries = [
            {token: Logprob(each.logprob, each.rank, each.decoded_token) for token, each in entry.items()}
            for entry in part.logprobs
        ]
        if part.cumulative_logprob is not None:
            logprob, sequence.logprob = part.cumulative_logprob - sequence.logprob, part.cumulative_logprob
    return Delta(
        sequence.request_id,
        text=part.text,
        tokens=len(part.token_ids),
        prompt_tokens=sequence.prompt_tokens,
        sequence=sequence.index,
        finish_reason=reason,
        logprobs=entries,
        logprob=logprob,
    )


def _embedding(sequence: _Sequence, output: Any) -> Delta:
    """Returns the embedding that a step has computed."""
    vector = output.outputs.data.float().reshape(-1).numpy()
    return Delta(sequence.request_id, prompt_tokens=sequence.prompt_tokens, finish_reason="stop", embedding=vector)


def _require_task(tasks: Sequence[str], *, embeds: bool) -> None:
    """Raise InvalidArgument for a model that cannot do what model.json says it is for."""
    can = f"vLLM can use it to {', '.join(tasks)}"
    if embeds and "embed" not in tasks:
        raise InvalidArgument(f"the model does not give embeddings; {can}")
    if not embeds and "generate" not in tasks:
        advice = ', for which model.json needs "runner": "pooling"' if "embed" in tasks else ""
        raise InvalidArgument(f"the model does not generate text; {can}{advice}")


def _images_of(renderer: Any, config: Any) -> ImageMediaIO | None:
    """The decoder of images with the model's settings; None for a model that takes no images."""
    processor = renderer.mm_processor
    if processor is None or not processor.info.allowed_mm_limits.get("image"):
        return None
    return ImageMediaIO(**config.multimodal_config.media_io_kwargs.get("image", {}))


def _lacking(arguments: EngineArguments, error: BaseException) -> str:
    """The package that vLLM seems to lack, for an error that does not name it."""
    speaks_of_it = any(word in str(error) for word in ("failed to be inspected", "torchvision", "rocessor"))
    if not speaks_of_it or not takes_images(arguments) or importlib.util.find_spec("torchvision") is not None:
        return ""
    return "; most models that take images need torchvision, in the build for the installed torch, and it is not installed"


def _text(error: BaseException) -> str:
    return echo(str(error).strip() or type(error).__name__)
