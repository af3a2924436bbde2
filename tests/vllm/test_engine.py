"""The suite of engines, on vLLM with a real model. Runs in the environment of vLLM: make test-vllm."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vllm.place import MODEL
from tpy.backend.engine import Engine, EngineRequest
from tpy.testing.engine_conformance import EngineConformance, EngineUnderTest
from tpy_backends.vllm.arguments import EngineArguments

pytest.importorskip("vllm")

ARGUMENTS: dict[str, Any] = {
    "model": str(MODEL),
    "dtype": "float32",  # rounded to 16 bits, an answer would depend on which requests share its steps
    "max_model_len": 512,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 256 * 1024 * 1024,
    "enforce_eager": True,
    "enable_prefix_caching": False,
}


def _create() -> Engine:
    from tpy_backends.vllm.engine import VllmEngine

    return VllmEngine(EngineArguments(engine=ARGUMENTS, adapters={}, logs_stats=False), "under test", pytest.fail, name="m")


def _asking(**sampling: object) -> EngineRequest:
    return EngineRequest(id=0, prompt="Name a city.", sampling=sampling, logprobs="logprobs" in sampling)


class TestVllm(EngineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> EngineUnderTest:
        return EngineUnderTest(
            create=_create,
            prompt=lambda number: f"Tell me story number {number}.",
            too_long="many words " * 1000,
            refused={
                "lora_name|LoRA": _asking(lora_name="none"),
                "prompt_logprobs": _asking(prompt_logprobs=1),
                "temperature": _asking(temperature="hot"),
                "seed": _asking(seed=2**70),
                "stop": _asking(stop=[""]),
                "stop_token_ids": _asking(stop_token_ids=[10_000_000]),
                "logit_bias": _asking(logit_bias={"10000000": 1}),
                "logprobs": _asking(logprobs=10_000),
                "structured_outputs": _asking(structured_outputs={"json": {}, "regex": "a"}),
                "Grammar": _asking(structured_outputs={"json": {"type": "nothing"}}),
                "regex": _asking(structured_outputs={"regex": "("}),
                "grammar": _asking(structured_outputs={"grammar": "root ="}),
                "empty": EngineRequest(id=0, prompt=""),
                "prompt_token_ids": EngineRequest(id=0, prompt="", prompt_token_ids=(10_000_000,)),
            },
        )
