"""model.json and multi_lora.json, and the configuration that is completed from them. vLLM is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tpy.backend import BackendSettings, InstancePlacement, ModelContext
from tpy.backend.engine import EmbeddingBackend, ImageBackend
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelParameter
from tpy.errors import InvalidArgument, TpyError, Unavailable
from tpy_backends.vllm import create
from tpy_backends.vllm.arguments import EngineArguments, arguments_of, require_known, visible_gpus


def given(folder: Path, adapters: object = None, **arguments: Any) -> EngineArguments:
    (folder / "model.json").write_text(json.dumps(arguments))
    if adapters is not None:
        (folder / "multi_lora.json").write_text(json.dumps(adapters))
    return arguments_of(folder)


def context(folder: Path, **parameters: str) -> ModelContext:
    config = ModelConfig(
        name="m", backend="vllm", parameters={name: ModelParameter(string_value=text) for name, text in parameters.items()}
    )
    return ModelContext(name="m", version=1, generation=1, config=config, model_directory=folder.parent, version_directory=folder)


def test_the_sample_of_tritons_backend_is_taken_as_it_is(tmp_path: Path) -> None:
    found = given(
        tmp_path,
        model="facebook/opt-125m",
        disable_log_requests=True,
        gpu_memory_utilization=0.5,
        enforce_eager=True,
        disable_log_stats=True,
    )
    assert found.engine == {"model": "facebook/opt-125m", "gpu_memory_utilization": 0.5, "enforce_eager": True}
    assert not found.logs_stats
    assert found.folder is None


def test_adapters_are_read_where_lora_is_enabled_as_text_or_not(tmp_path: Path) -> None:
    found = given(tmp_path, {"doll": "/adapters/doll"}, model="m", enable_lora="true")
    assert (found.engine["enable_lora"], found.adapters) == (True, {"doll": "/adapters/doll"})
    assert given(tmp_path, model="m", enable_lora=False).adapters == {}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "'model' must be the folder of a model"),
        ({"model": "m", "data_parallel_size": 2}, "'data_parallel_size': 2 is not supported: an instance is one engine"),
        ({"model": "m", "runner": "draft"}, "'runner': draft is not supported: models of this backend generate text"),
        ({"model": "m", "convert": "classify"}, "'convert': classify is not supported: models of this backend generate text"),
        ({"model": "m", "task": "score"}, "'task': score is not supported: it may be auto, generate, embed, embedding"),
        ({"model": "m", "skip_tokenizer_init": True}, "'skip_tokenizer_init': True is not supported"),
        ({"model": "m", "enable_lora": "maybe"}, "'enable_lora' must be true or false, got maybe"),
        ({"model": "m", "enable_lora": True}, "'enable_lora' needs 'multi_lora.json'"),
    ],
)
def test_an_argument_that_is_wrong_is_named(tmp_path: Path, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(TpyError, match=error):
        given(tmp_path, **arguments)


@pytest.mark.parametrize(
    ("arguments", "embeds"),
    [({"runner": "pooling"}, True), ({"convert": "embed"}, True), ({"task": "embed"}, True), ({"task": "generate"}, False)],
)
def test_the_arguments_say_whether_a_model_gives_embeddings(tmp_path: Path, arguments: dict[str, Any], embeds: bool) -> None:
    found = given(tmp_path, model="m", **arguments)
    assert found.embeds is embeds
    assert "task" not in found.engine, "an argument of earlier versions"
    backend = create(BackendSettings(name="vllm"))
    assert isinstance(backend, EmbeddingBackend)
    assert backend.gives_embeddings(context(tmp_path)) is embeds


def test_a_model_of_embeddings_has_no_adapters(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="'enable_lora' is not supported for a model of embeddings"):
        given(tmp_path, {"doll": "/adapters/doll"}, model="m", enable_lora=True, runner="pooling")


def test_files_that_are_missing_or_broken_are_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"'model.json' containing vllm engine args must be provided in "):
        arguments_of(tmp_path)
    (tmp_path / "model.json").write_text("[1")
    with pytest.raises(InvalidArgument, match=r"cannot read '.*model.json': "):
        arguments_of(tmp_path)
    with pytest.raises(InvalidArgument, match="the adapter 'a' must be the path of a folder"):
        given(tmp_path, {"a": 1}, model="m", enable_lora=True)


def test_an_argument_that_vllm_does_not_have_is_named(tmp_path: Path) -> None:
    found = given(tmp_path, model="m", max_num_seq=1)
    with pytest.raises(InvalidArgument, match=r"vLLM 1\.0 has no engine argument 'max_num_seq'; did you mean 'max_num_seqs'\?"):
        require_known(found, {"model", "max_num_seqs"}, "1.0")


@pytest.mark.parametrize(
    ("kind", "ids", "size", "expected"),
    [
        (InstanceKind.KIND_GPU, "", 1, "3"),
        (InstanceKind.KIND_GPU, "", 2, "KIND_GPU is currently for single-GPU models"),
        (InstanceKind.KIND_MODEL, "", 2, ""),
        (InstanceKind.KIND_MODEL, "0, 2", 2, "0,2"),
        (InstanceKind.KIND_MODEL, "0,0", 2, "must be different numbers of GPUs"),
        (InstanceKind.KIND_MODEL, "-1", 1, "must be different numbers of GPUs"),
        (InstanceKind.KIND_MODEL, "0,1,2", 2, "names 3 GPUs, and the engine wants 2"),
        (InstanceKind.KIND_CPU, "1", 1, ""),
    ],
)
def test_gpus_are_chosen_by_tritons_rules(tmp_path: Path, kind: InstanceKind, ids: str, size: int, expected: str) -> None:
    arguments = given(tmp_path, model="m", tensor_parallel_size=size)
    placement = InstancePlacement(name="m_0", kind=kind, device_id=3)
    try:
        found = visible_gpus(arguments, context(tmp_path, GPU_DEVICE_IDS=ids).config, placement)
    except InvalidArgument as error:
        found = error.message
    assert found == expected or (expected and expected in found)


def test_the_configuration_gets_the_tokenizer_and_the_longest_sequence(tmp_path: Path) -> None:
    model, version = tmp_path / "model", tmp_path / "1"
    model.mkdir()
    version.mkdir()
    (model / "config.json").write_text('{"max_position_embeddings": 300}')
    (model / "tokenizer_config.json").write_text("{}")
    backend = create(BackendSettings(name="vllm"))
    given(version, model=str(model))
    completed = backend.auto_complete(context(version))
    assert (completed.parameter("max_model_len"), completed.parameter("tokenizer")) == ("300", str(model))
    given(version, model=str(model), max_model_len=200)
    own = backend.auto_complete(context(version, chat_template="mine"))
    assert (own.parameter("max_model_len"), own.parameter("tokenizer")) == ("200", "")
    given(version, model="some/where")
    assert backend.auto_complete(context(version)).parameters == {}


def test_without_vllm_a_load_says_what_to_install_and_where(tmp_path: Path) -> None:
    given(tmp_path, model="m")
    backend = create(BackendSettings(name="vllm"))
    with pytest.raises(Unavailable, match=r"needs vLLM, which .*python\S* does not have; install it with .*EXECUTION_ENV_PATH"):
        backend.load(context(tmp_path))
    with pytest.raises(InvalidArgument, match="needs isolation 'process'"):
        backend.load(context(tmp_path, isolation="thread"))


def model_of(folder: Path, **configuration: Any) -> str:
    (folder / "config.json").write_text(json.dumps(configuration))
    return str(folder)


@pytest.mark.parametrize(
    ("configuration", "arguments", "takes"),
    [
        ({"model_type": "llama", "vocab_size": 1}, {}, False),
        ({"vision_config": {}}, {}, True),
        ({"image_token_id": 7}, {}, True),
        ({"img_processor": {}}, {}, True),
        ({"vision_config": {}}, {"limit_mm_per_prompt": {"image": 0}}, False),
        ({"vision_config": {}}, {"limit_mm_per_prompt": {"image": {"count": 0}}}, False),
        ({"vision_config": {}}, {"limit_mm_per_prompt": {"image": 2}}, True),
        ({"vision_config": {}}, {"language_model_only": True}, False),
        ({"vision_config": {}}, {"runner": "pooling"}, False),
    ],
)
def test_the_files_say_whether_a_model_takes_images(
    tmp_path: Path, configuration: dict[str, Any], arguments: dict[str, Any], takes: bool
) -> None:
    given(tmp_path, model=model_of(tmp_path, **configuration), **arguments)
    backend = create(BackendSettings(name="vllm"))
    assert isinstance(backend, ImageBackend)
    assert backend.takes_images(context(tmp_path)) is takes


def test_of_a_model_on_a_hub_only_the_engine_knows_whether_it_takes_images(tmp_path: Path) -> None:
    given(tmp_path, model="some/model")
    assert create(BackendSettings(name="vllm")).takes_images(context(tmp_path))  # type: ignore[attr-defined]  # a protocol


def test_the_placeholder_of_a_known_kind_of_model_is_filled_in(tmp_path: Path) -> None:
    given(tmp_path, model=model_of(tmp_path, model_type="phi3_v", img_processor={}))
    backend = create(BackendSettings(name="vllm"))
    assert backend.auto_complete(context(tmp_path)).parameter("image_placeholder") == "<|image_{number}|>"
    assert backend.auto_complete(context(tmp_path, image_placeholder="<pic>")).parameter("image_placeholder") == "<pic>"
    model_of(tmp_path, model_type="llama")
    assert backend.auto_complete(context(tmp_path)).parameter("image_placeholder") == ""
