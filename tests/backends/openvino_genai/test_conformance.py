"""The suite of engines, on OpenVINO GenAI with a real model."""

from __future__ import annotations

import pytest

from tests.backends.openvino_genai.smollm2 import gguf_file
from tpy.backend.engine import Engine, EngineRequest
from tpy.testing.engine_conformance import EngineConformance, EngineUnderTest
from tpy_backends.openvino_genai.model_folder import LanguageModelFacts
from tpy_backends.openvino_genai.settings import EngineSettings


def _create() -> Engine:
    path = gguf_file()
    from tpy_backends.openvino_genai.engine import GenAiEngine

    settings = EngineSettings(num_kv_blocks=256, max_num_seqs=4, max_num_batched_tokens=256, max_model_len=1000)
    return GenAiEngine(LanguageModelFacts(path=path, context=8192, vocabulary=49_152), "CPU", settings, {})


def _asking(**sampling: object) -> EngineRequest:
    return EngineRequest(id=0, prompt="Name a city.", sampling=sampling)


class TestGenAi(EngineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> EngineUnderTest:
        return EngineUnderTest(
            create=_create,
            prompt=lambda number: f"Tell me story number {number}.",
            too_long="many words " * 1000,
            refused={
                "logit_bias": _asking(logit_bias={"1": 5}),
                "lora_name": _asking(lora_name="none"),
                "temperature": _asking(temperature="hot"),
                "seed": _asking(seed=0.5),
                "stop": _asking(stop=[""]),
                "structured_outputs": _asking(structured_outputs={"json": {}, "regex": "a"}),
                "empty": EngineRequest(id=0, prompt=""),
                "prompt_token_ids": EngineRequest(id=0, prompt="", prompt_token_ids=(10_000_000,)),
            },
            failing=_asking(structured_outputs={"json": {"type": "nothing"}}, temperature=0.0),
        )
