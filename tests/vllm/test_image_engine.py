"""The suite of engines that take images, on vLLM with a tiny model. Runs in the environment of vLLM: make test-vllm."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vllm.pictures import noise, plain
from tpy.backend.engine import Engine, EngineRequest
from tpy.errors import InvalidArgument
from tpy.testing.engine_conformance import EngineUnderTest, RunningEngine
from tpy.testing.image_conformance import ImageConformance, Pictured, give
from tpy_backends.vllm.arguments import EngineArguments

pytest.importorskip("vllm")
LlavaConfig = pytest.importorskip("transformers").LlavaConfig

PROMPT = "[CLS] User: <image> the red boat <end_of_utterance> Assistant:"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, Path(__file__).with_name("tiny.py"), folder], check=True)
    return folder / "seer"


class TestVllm(ImageConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, model: Path) -> EngineUnderTest:
        def create() -> Engine:
            from tpy_backends.vllm.engine import VllmEngine

            arguments = {
                "model": str(model),
                "dtype": "float32",
                "max_num_seqs": 4,
                "kv_cache_memory_bytes": 16 * 1024 * 1024,
                "enforce_eager": True,
                "enable_prefix_caching": False,
                "limit_mm_per_prompt": {"image": 2},
            }
            return VllmEngine(
                EngineArguments(engine=arguments, adapters={}, logs_stats=False), "under test", pytest.fail, name="m"
            )

        return EngineUnderTest(
            create=create, prompt=lambda number: "a boat runs" + " over the river" * number, too_long="boat " * 200
        )

    @pytest.fixture(scope="class")
    @classmethod
    def pictured(cls) -> Pictured:
        return Pictured(
            prompt=PROMPT, prompt_of_two=PROMPT.replace("<image>", "<image> over <image>"), images=(plain(0), plain(255))
        )

    def test_its_tokens_count(self, running: RunningEngine) -> None:
        number = give(running, PROMPT, noise(1))
        running.finish()
        places = {"<image>": 1 + 1 + 4 + 1}  # the sign around it twice, the sign of a whole image, and four of the image
        expected = sum([places.get(word, 1) for word in PROMPT.split()])
        assert {delta.prompt_tokens for delta in running.deltas[number]} == {expected}

    def test_what_is_refused_is_named_and_harms_nobody(self, running: RunningEngine) -> None:
        number = give(running, PROMPT, noise(1))
        for prompt, images, error in (
            ("<image> " * 3, [noise(1)] * 3, "At most 2 image"),
            (PROMPT + " boat" * 115, [noise(3)], "the prompt has 129 tokens, at most 127 are taken"),
            ("<image>", [noise(1)[:200]], "'image': image 1 of 1 cannot be decoded"),
        ):
            with pytest.raises(InvalidArgument, match=error):
                running.give(EngineRequest(id=0, prompt=prompt, images=tuple(images), max_tokens=8))
        after = give(running, PROMPT, noise(3))  # vLLM must not believe that its core has what was refused
        running.finish()
        assert running.text(number)
        assert running.text(after)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed")
def test_a_model_that_needs_torchvision_says_so(tmp_path: Path) -> None:
    from tpy_backends.vllm.engine import VllmEngine

    LlavaConfig(architectures=["LlavaForConditionalGeneration"]).save_pretrained(tmp_path)
    arguments = EngineArguments(engine={"model": str(tmp_path), "dtype": "float32"}, adapters={}, logs_stats=False)
    with pytest.raises(InvalidArgument, match="most models that take images need torchvision, in the build for the installed"):
        VllmEngine(arguments, "under test", pytest.fail, name="m")
