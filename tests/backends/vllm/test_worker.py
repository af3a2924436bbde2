"""The engine in a worker whose interpreter is that of EXECUTION_ENV_PATH, and which has nothing of the server's packages: what
crosses to vLLM and back. In the place of vLLM is `fake/vllm`."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.backends.engines.test_isolated import answer, text
from tpy.backend import BackendSettings, InstancePlacement, ModelContext
from tpy.backend.engine import EngineLimits
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelParameter
from tpy.errors import InvalidArgument, TpyError, Unavailable
from tpy.messages import DataType, Tensor
from tpy.testing.requests import RecordingSender, SampleRequest, batch_of
from tpy_data.backends.creation import BackendOrigin
from tpy_data.backends.isolated import IsolatedBackend
from tpy_data.generation.core.asking import with_inputs_and_outputs

ORIGIN = BackendOrigin(entry_point="tpy_backends.vllm:create", described="this test")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("environment"))


def make_environment(folder: Path) -> Path:
    """An interpreter with numpy, Pillow and the fake vLLM, and without this server."""
    packages = folder / "packages"
    packages.mkdir(parents=True)
    (packages / "vllm").symlink_to(Path(__file__).parent / "fake" / "vllm")
    for package, libraries in (("numpy", "numpy.libs"), ("PIL", "pillow.libs")):
        found = find_spec(package)
        assert found is not None
        assert found.origin is not None
        for place in (Path(found.origin).parent, Path(found.origin).parents[1] / libraries):
            (packages / place.name).symlink_to(place)
    (folder / "bin").mkdir()
    python = folder / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {os.path.realpath(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return folder


def image(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


def images(*files: bytes) -> Tensor:
    array = np.empty(len(files), object)
    array[:] = [base64.b64encode(file) for file in files]
    return Tensor("image", DataType.BYTES, array)


class Served:
    """One model, made by `model.json`, and an instance of it."""

    def __init__(self, folder: Path, environment: Path, **arguments: Any) -> None:
        (folder / "model.json").write_text(json.dumps(arguments))
        (folder / "multi_lora.json").write_text('{"doll": "/adapters/doll"}')
        self.logs: list[str] = []
        self.backend = IsolatedBackend(ORIGIN, BackendSettings(name="vllm"), lambda level, message: self.logs.append(message))
        try:
            self._load(folder, environment)
        except BaseException:
            self.backend.close()
            raise

    def _load(self, folder: Path, environment: Path) -> None:
        parameters = {"EXECUTION_ENV_PATH": str(environment), "GPU_DEVICE_IDS": "2"}
        config = ModelConfig(
            name="m", backend="vllm", parameters={name: ModelParameter(string_value=value) for name, value in parameters.items()}
        )
        context = ModelContext(
            name="m",
            version=1,
            generation=1,
            config=with_inputs_and_outputs(config),
            model_directory=folder.parent,
            version_directory=folder,
            log=lambda level, message: self.logs.append(message),
        )
        self.model = self.backend.load(context)
        self.instance: Any = self.model.create_instance(InstancePlacement(name="m_0", kind=InstanceKind.KIND_MODEL))

    def ask(self, prompt: str, *further: Tensor, **sampling: Any) -> RecordingSender:
        """A request whose answer does not begin with the prompt."""
        sender = RecordingSender()
        inputs = [
            text("text_input", prompt),
            text("sampling_parameters", json.dumps(sampling)),
            Tensor("exclude_input_in_output", DataType.BOOL, np.array([True])),
            *further,
        ]
        self.instance.execute(batch_of([SampleRequest(inputs={each.name: each for each in inputs}, sender=sender)]))
        return sender

    def embed(self, prompt: object, settings: object) -> RecordingSender:
        """A request for an embedding."""
        sender = RecordingSender()
        given = text("embedding_request", json.dumps({"input": prompt, "pooling_params": settings}))
        self.instance.execute(batch_of([SampleRequest(inputs={given.name: given}, sender=sender)]))
        return sender

    def close(self) -> None:
        self.instance.close()
        self.model.unload()
        self.backend.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, environment: Path) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("version"), environment, model="m", enable_lora=True, disable_log_requests=True)
    yield served
    served.close()


def test_requests_reach_vllm_with_all_that_they_ask_for(served: Served) -> None:
    assert served.instance.engine_limits == EngineLimits(sequences=4, tokens=160)
    sender = served.ask(
        "a word", temperature=0, max_tokens=3, lora_name="doll", structured_outputs={"choice": ["x"]}, logit_bias={"7": 1}
    )
    assert json.loads(answer(served, sender)) == {
        "tokens": [1, 1, 4],
        "parameters": {"temperature": 0, "max_tokens": 3, "logit_bias": {"7": 1.0}},
        "structure": {"choice": ["x"]},
        "adapter": ["doll", 1, "/adapters/doll"],
        "gpus": "2",
    }
    begun = json.loads(answer(served, served.ask("<s> word")))
    assert (begun["tokens"], begun["parameters"], begun["adapter"]) == ([3, 4], {"max_tokens": 16}, None)


def test_sequences_are_requests_with_seeds_of_their_own_and_outputs_are_counted(served: Served) -> None:
    names = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
    flags = [Tensor(f"return_{name}", DataType.BOOL, np.array([True])) for name in names]
    sender = served.ask("word", *flags, n=2, seed=5, prompt_token_ids=[9, 9, 9])
    answer(served, sender)
    (result,) = [each for each, _ in sender.sent if each is not None]
    outputs = {each.name: each.array.tolist() for each in result.outputs}
    said = [json.loads(each) for each in outputs.pop("text_output")]
    assert [each["parameters"] for each in said] == [{"seed": seed, "max_tokens": 16, "logprobs": 0} for seed in (5, 6)]
    assert said[0]["tokens"] == [9, 9, 9]
    assert outputs.pop("logprobs")[0] == json.dumps([{7: {"logprob": -1.0, "rank": 1, "decoded_token": "word"}}] * 2).encode()
    assert outputs == {
        "finish_reason": [b"stop"] * 2,
        "cumulative_logprob": [-2.0] * 2,
        "num_input_tokens": [3],
        "num_output_tokens": [2, 2],
    }


@pytest.mark.parametrize(
    ("prompt", "sampling", "error"),
    [
        ("word", {"min_p": 1}, "the engine refuses the request: min_p is refused"),
        ("word " * 19, {}, "the prompt has 20 tokens, at most 19 are taken: prompt and answer may have 20 together"),
        ("word", {"prompt_token_ids": [100]}, "'prompt_token_ids' has the token 100, the model knows 100"),
        ("word", {"lora_name": "x"}, "LoRA x is not supported, we currently support ['doll']"),
    ],
)
def test_what_is_refused_is_named(served: Served, prompt: str, sampling: dict[str, Any], error: str) -> None:
    assert answer(served, served.ask(prompt, **sampling)) == error


def test_inputs_that_the_engine_cannot_use_are_refused(served: Served) -> None:
    assert answer(served, served.ask("word", text("embedding_request", "x"))).startswith(
        "input 'embedding_request' is not supported"
    )
    assert answer(served, served.ask("word", images(image(2, 2)))) == "model 'm' takes no images"


def test_special_tokens_may_be_left_out(served: Served) -> None:
    assert json.loads(answer(served, served.ask("word", add_special_tokens=False)))["tokens"] == [4]
    assert json.loads(answer(served, served.ask("<s> word", add_special_tokens=True)))["tokens"] == [1, 3, 4]
    assert "'add_special_tokens' must be true or false" in answer(served, served.ask("word", add_special_tokens="no"))


def test_a_prompt_may_be_cut(served: Served) -> None:
    def tokens(prompt: str, most: object, **sampling: Any) -> Any:
        return json.loads(answer(served, served.ask(prompt, truncate_prompt_tokens=most, **sampling)))["tokens"]

    assert tokens("a bb ccc", 2) == [1, 1]
    assert tokens("a bb ccc", None) == [1, 1, 2, 3]
    assert len(tokens("word " * 30, -1)) == 19
    assert tokens("", 2, prompt_token_ids=[5, 6, 7]) == [6, 7]
    said = answer(served, served.ask("word", truncate_prompt_tokens=20))
    assert said == "'truncate_prompt_tokens' must be a number from -1 to 19, got 20"


def test_images_cross_to_vllm(tmp_path: Path, environment: Path) -> None:
    served = Served(tmp_path, environment, model="seer")
    try:
        said = json.loads(answer(served, served.ask("<image> or <image>", images(image(8, 4), image(2, 3)))))
        assert said["images"] == [[8, 4, "black"], [2, 3, "black"]]
        assert said["tokens"] == [1, 7, 7, 7, 2, 7, 7, 7]
        for prompt, given, error in (
            ("word", [image(2, 2)], "the prompt has no place for each of its 1 images: Failed to apply prompt replacement"),
            ("<image> " * 3, [image(2, 2)] * 3, "the engine refuses the request: At most 2 image(s) may be provided"),
            ("<image> " * 7, [image(2, 2)], "the prompt has 22 tokens, at most 19 are taken"),
            ("<image>", [image(9000, 9000)], "'image': image 1 of 1 has 9000 x 9000 pixels, and those of a request may have"),
            ("<image>", [image(20, 20)[:50]], "'image': image 1 of 1 cannot be decoded: "),
            ("<image>", [b"GIF"], "'image': image 1 of 1 is not a PNG, JPEG, WEBP, GIF or BMP file"),
        ):
            assert answer(served, served.ask(prompt, images(*given))).startswith(error), error
        assert json.loads(answer(served, served.ask("a word")))["tokens"] == [1, 1, 4]
    finally:
        served.close()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"model": "broken"}, Unavailable(r"vLLM .* cannot start: RuntimeError: the weights are broken")),
        ({"model": "wrong"}, InvalidArgument(r"vLLM .* refuses the model or its arguments: max_model_len is wrong")),
        ({"model": "blind"}, InvalidArgument(r"failed to be inspected\.; most models that take images need torchvision")),
        (
            {"model": "embedder"},
            InvalidArgument(
                r'the model does not generate text; vLLM can use it to token_embed, embed, for which model.json needs "runner"'
            ),
        ),
        (
            {"model": "m", "runner": "pooling"},
            InvalidArgument(r"the model does not give embeddings; vLLM can use it to generate"),
        ),
        ({"model": "m", "gpu": 1}, InvalidArgument(r"model.json: vLLM .* has no engine argument 'gpu'")),
    ],
)
def test_a_model_that_vllm_cannot_run_says_why(
    tmp_path: Path, environment: Path, arguments: dict[str, Any], error: TpyError
) -> None:
    with pytest.raises(type(error), match=error.message):
        Served(tmp_path, environment, **arguments)


def test_embeddings_cross_to_vllm_and_back(tmp_path: Path, environment: Path) -> None:
    served = Served(tmp_path, environment, model="embedder", runner="pooling")
    try:
        prompts: tuple[Any, ...] = ("<s> word", [9, 9])
        found = [answer(served, served.embed(each, {"dimensions": [3], "use_activation": False})) for each in prompts]
        assert [json.loads(each) for each in found] == [[8.0, 3.0, 0.0], [18.0, 3.0, 0.0]], "the beginning of a text is a token"
        for document, settings, error in (
            ("word", {"dimensions": 4}, "the engine refuses the request: only supports dimensions in range"),
            ("word", {"dimensions": 0}, "'dimensions' must be a number from 1 to"),
            ("word", {"normalize": True}, "'normalize' is not supported by backend vllm for embeddings"),
            ("word", {"truncate_prompt_tokens": 21}, "'truncate_prompt_tokens' must be a number from -1 to 20, got 21"),
            ("word", {"truncate_prompt_tokens": 0}, "'truncate_prompt_tokens' must be -1, or an integer from 1 to 20, got 0"),
            ("word " * 20, {}, "the prompt has 21 tokens, at most 20 are taken"),
            ([100], {}, "'prompt_token_ids' has the token 100, the model knows 100"),
        ):
            assert answer(served, served.embed(document, settings)).startswith(error)
        assert json.loads(answer(served, served.embed("a bb ccc dddd", {"truncate_prompt_tokens": 3}))) == [4.0]
        assert json.loads(answer(served, served.embed([2] * 30, {"truncate_prompt_tokens": -1}))) == [40.0]
        assert answer(served, served.ask("word")).startswith("input 'embedding_request' is missing: the model gives embeddings")
    finally:
        served.close()


def test_the_end_of_a_process_of_vllm_ends_the_worker_and_its_requests(tmp_path: Path, environment: Path) -> None:
    served = Served(tmp_path, environment, model="mortal")
    try:
        said = answer(served, served.ask("word"))
        assert "exited with status 70" in said, served.logs
    finally:
        served.close()
    assert any("vLLM's process 'EngineCore' has ended" in each for each in served.logs)


def test_an_environment_that_cannot_run_the_server_says_what_it_needs(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "environment")
    (environment / "packages" / "msgspec.py").write_text("raise ImportError('made for another Python')")
    with pytest.raises(Unavailable, match=r"cannot run backends of this server: made for another Python. It needs Python 3\.11"):
        Served(tmp_path, environment, model="m")
