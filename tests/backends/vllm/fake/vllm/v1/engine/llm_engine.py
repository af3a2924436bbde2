import json
import multiprocessing
import os
import threading
from types import SimpleNamespace

import numpy as np

from vllm import PoolingParams
from vllm.exceptions import VLLMClientError
from vllm.outputs import PoolingRequestOutput
from vllm.sampling_params import RequestOutputKind


class Vector:
    """As much of a torch.Tensor as the backend uses."""

    def __init__(self, *values):
        self._values = values

    def float(self):
        return self

    def reshape(self, size):
        assert size == -1
        return self

    def numpy(self):
        return np.array(self._values, np.float32)


class Tokenizer:
    bos_token = "<s>"
    truncation_side = "left"

    def encode(self, text, add_special_tokens, truncation=False, max_length=None):
        tokens = [1] * add_special_tokens + [len(word) for word in text.split()]
        return tokens[:max_length] if truncation else tokens


def rendered(prompts, skip_mm_cache=False):
    """Each image gets three tokens in place of a 7."""
    (prompt,) = prompts
    if "multi_modal_data" not in prompt:
        return prompts
    assert skip_mm_cache
    images = prompt["multi_modal_data"]["image"]
    if len(images) > 2:
        raise VLLMClientError("At most 2 image(s) may be provided in one prompt.")
    tokens = []
    for token in prompt["prompt_token_ids"]:
        tokens += [7] * 3 if token == 7 else [token]
    if tokens.count(7) < 3 * len(images):
        raise AssertionError("Failed to apply prompt replacement")
    return [{"prompt_token_ids": tokens, "images": images}]


class LLMEngine:
    @classmethod
    def from_engine_args(cls, arguments, stat_loggers, enable_multiprocessing):
        assert enable_multiprocessing
        if arguments.model == "broken":
            raise RuntimeError("the weights are broken")
        if arguments.model == "blind":
            raise ValueError("Model architectures ['X'] failed to be inspected.")
        if arguments.model == "wrong":
            raise ValueError("max_model_len is wrong")
        return cls(arguments, stat_loggers[0](None, 0))

    def __init__(self, arguments, statistics):
        self.statistics = statistics
        self.arguments = arguments
        self.requests = {}
        self.core = None
        if arguments.model == "mortal":
            context = multiprocessing.get_context("spawn")
            self.core, theirs = context.Pipe()
            context.Process(target=theirs.recv, name="EngineCore").start()
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(
                max_model_len=arguments.max_model_len,
                get_vocab_size=lambda: 100,
                multimodal_config=SimpleNamespace(media_io_kwargs={"image": {"background": "black"}}),
            ),
            cache_config=SimpleNamespace(num_gpu_blocks=11, block_size=16),
            scheduler_config=SimpleNamespace(max_num_seqs=arguments.max_num_seqs),
        )
        sees = arguments.model == "seer"
        processor = SimpleNamespace(info=SimpleNamespace(allowed_mm_limits={"image": 2})) if sees else None
        self.renderer = SimpleNamespace(render_cmpl=rendered, mm_processor=processor)
        self.engine_core = SimpleNamespace(shutdown=lambda: None)

    def get_supported_tasks(self):
        return ("token_embed", "embed") if self.arguments.model == "embedder" else ("generate",)

    def get_tokenizer(self):
        return Tokenizer()

    def add_request(self, name, prompt, parameters, lora_request=None):
        if isinstance(parameters, PoolingParams):
            if parameters.arguments.get("dimensions", 1) > 3:
                raise VLLMClientError("only supports dimensions in range [1, 3]")
            self.requests[name] = Vector(sum(prompt["prompt_token_ids"]), *parameters.arguments.values())
            return
        if parameters.arguments.get("min_p") == 1.0:
            raise VLLMClientError("min_p is refused")
        assert parameters.arguments.pop("output_kind") is RequestOutputKind.DELTA
        structure = parameters.arguments.pop("structured_outputs")
        said = {
            "tokens": prompt["prompt_token_ids"],
            "parameters": parameters.arguments,
            "structure": structure and structure.arguments,
            "adapter": lora_request,
            **({"images": prompt["images"]} if "images" in prompt else {}),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
        self.requests[name] = [json.dumps(said), None]

    def abort_request(self, names):
        for name in names:
            del self.requests[name]

    def step(self):
        if self.core is not None:
            self.core.send("end")
            threading.Event().wait()
        outputs = []
        for name, pieces in list(self.requests.items()):
            if isinstance(pieces, Vector):
                del self.requests[name]
                outputs.append(PoolingRequestOutput(name, SimpleNamespace(data=pieces)))
                continue
            text = pieces.pop(0)
            if text is None:
                del self.requests[name]
            entry = {7: SimpleNamespace(logprob=-1.0, rank=1, decoded_token="word")}
            part = SimpleNamespace(
                text=text or "",
                token_ids=[7],
                finish_reason=None if text else "stop",
                logprobs=[entry],
                cumulative_logprob=-1.0 if text else -2.0,
            )
            outputs.append(SimpleNamespace(request_id=name, outputs=[part]))
        prefix = SimpleNamespace(queries=1, hits=0)
        count = len(self.requests)
        self.statistics.record(
            SimpleNamespace(num_running_reqs=count, num_waiting_reqs=0, kv_cache_usage=count / 10, prefix_cache_stats=prefix),
            SimpleNamespace(num_preempted_reqs=0),
        )
        return outputs
