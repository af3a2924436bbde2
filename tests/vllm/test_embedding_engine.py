"""The suite of engines of embeddings, on vLLM with tiny models. Runs in the environment of vLLM: make test-vllm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tpy.backend.engine import Engine, EngineRequest
from tpy.testing.embedding_conformance import EmbeddingConformance, asking
from tpy.testing.engine_conformance import EngineUnderTest
from tpy_backends.vllm.arguments import EngineArguments

pytest.importorskip("vllm")

TINY = Path(__file__).with_name("tiny.py")
WORDS = ("red", "green", "blue", "boat", "train", "city", "river")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, TINY, folder], check=True)
    return folder


class OnVllm(EmbeddingConformance):
    model = ""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, models: Path) -> EngineUnderTest:
        def create() -> Engine:
            from tpy_backends.vllm.engine import VllmEngine

            arguments = {
                "model": str(models / cls.model),
                "runner": "pooling",
                "dtype": "float32",
                "max_num_seqs": 4,
                "kv_cache_memory_bytes": 16 * 1024 * 1024,
                "enforce_eager": True,
            }
            return VllmEngine(
                EngineArguments(engine=arguments, adapters={}, logs_stats=False), "under test", pytest.fail, name="m"
            )

        return EngineUnderTest(
            create=create,
            prompt=lambda number: f"the {WORDS[number % len(WORDS)]} {WORDS[number * 3 % len(WORDS)]} runs",
            too_long="boat " * 100,
            refused={
                "dimensions": asking("boat", {"dimensions": 17}),
                "normalize": asking("boat", {"normalize": True}),
                "use_activation": asking("boat", {"use_activation": 1}),
                "prompt_token_ids": EngineRequest(id=0, prompt="", prompt_token_ids=(1000,), pooling={}),
            },
        )


class TestEncoder(OnVllm):
    model = "encoder"


class TestDecoder(OnVllm):
    model = "decoder"
