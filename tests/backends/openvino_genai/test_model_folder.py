"""Facts read from the files of a language model, and settings made of them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tpy.backend import ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import ModelParameter
from tpy.errors import InvalidArgument, TpyError, Unavailable
from tpy.units import GIB, MIB
from tpy_backends.openvino_genai.gguf import read_metadata
from tpy_backends.openvino_genai.model_folder import LanguageModelFacts, facts_of
from tpy_backends.openvino_genai.settings import settings_of

U32, STRING, ARRAY = 4, 8, 9
Q4_0, Q5_K = 2, 13
ENTRIES = {
    "general.architecture": "llama",
    "llama.context_length": 2048,
    "llama.block_count": 4,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "tokenizer.chat_template": "{{ messages }}",
    "tokenizer.ggml.tokens": ["<s>", "</s>", "a"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
}


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(content: Any) -> bytes:
    if isinstance(content, str):
        return struct.pack("<I", STRING) + text(content)
    if isinstance(content, list):
        return struct.pack("<IIQ", ARRAY, STRING, len(content)) + b"".join([text(each) for each in content])
    return struct.pack("<II", U32, content)


def gguf(*, entries: dict[str, Any] | None = None, kind: int = Q4_0, data: int = 18) -> bytes:
    """A file with one tensor of 32 elements."""
    entries = ENTRIES if entries is None else entries
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(entries))
    head += b"".join([text(name) + value(content) for name, content in entries.items()])
    head += text("weight") + struct.pack("<IQIQ", 1, 32, kind, 0)
    return head + bytes(-len(head) % 32) + bytes(data)


def context(folder: Path, **parameters: str) -> ModelContext:
    config = ModelConfig(name="m", parameters={name: ModelParameter(string_value=each) for name, each in parameters.items()})
    return ModelContext(name="m", version=1, generation=1, config=config, model_directory=folder, version_directory=folder)


def test_a_gguf_file_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf())
    facts = facts_of(context(tmp_path))
    assert (facts.context, facts.layers, facts.kv_width, facts.vocabulary) == (2048, 4, 16, 3)
    assert facts.parameters == {"chat_template": "{{ messages }}", "bos_token": "<s>", "eos_token": "</s>"}


def test_an_export_says_what_it_is(tmp_path: Path) -> None:
    config = {
        "max_position_embeddings": 512,
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 9,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "openvino_model.xml").write_text("<net/>")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    facts = facts_of(context(tmp_path))
    assert (facts.path, facts.context, facts.layers, facts.kv_width, facts.vocabulary) == (tmp_path, 512, 2, 64, 9)
    assert facts.parameters == {"tokenizer": str(tmp_path)}


@pytest.mark.parametrize("length", [0, 3, 10, 60, 200, len(gguf()) - 1])
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, length: int) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf()[:length])
    with pytest.raises(InvalidArgument, match=r"'model\.gguf' is not a whole GGUF file"):
        facts_of(context(tmp_path))


def test_a_format_that_the_engine_does_not_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf(kind=Q5_K, data=1000))
    with pytest.raises(InvalidArgument, match="has tensors in the format Q5_K, which OpenVINO GenAI does not read"):
        facts_of(context(tmp_path))


def test_sizes_beyond_reason_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60))
    with pytest.raises(InvalidArgument, match="its header has more than 2000000 items"):
        read_metadata(path)


def test_no_file_is_said_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "smollm2.gguf").write_bytes(gguf())
    with pytest.raises(Unavailable, match=r"rename smollm2.gguf"):
        facts_of(context(tmp_path))


FACTS = LanguageModelFacts(path=Path(), context=1000, layers=4, kv_width=1024)
BLOCK_BYTES = int(2 * 4 * 1024 * 1.25) * 32


def settings(available: int = GIB, facts: LanguageModelFacts = FACTS, **parameters: str) -> Any:
    return settings_of(context(Path(), **parameters).config, facts, available)


def test_the_cache_is_a_quarter_of_the_memory_and_no_more_than_sequences_need() -> None:
    assert settings(100 * MIB).num_kv_blocks == 25 * MIB // BLOCK_BYTES
    assert settings(100 * GIB).num_kv_blocks == 64 * 1000 // 32
    assert settings(100 * GIB, max_num_seqs="1").num_kv_blocks == 32


def test_the_context_is_what_fits_into_the_cache() -> None:
    assert settings().max_model_len == 1000
    assert settings(10 * MIB).max_model_len == 10 * MIB // 4 // BLOCK_BYTES * 32
    assert settings(max_model_len="100").max_model_len == 100


def test_the_cache_may_be_given() -> None:
    assert settings(cache_size="0.5").num_kv_blocks == GIB // 2 // BLOCK_BYTES
    assert settings(num_kv_blocks="7").num_kv_blocks == 7


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"cache_size": "much"}, "'cache_size' of model 'm' must be a number of GiB, got 'much'"),
        ({"max_num_seqs": "0"}, "'max_num_seqs' of model 'm' must be a positive number, got 0"),
        ({"enable_prefix_caching": "maybe"}, "failed to convert 'maybe' to boolean"),
        ({"cache_size": "2"}, r"needs about 2047 MiB, and 1024 MiB are available"),
    ],
)
def test_settings_that_are_wrong_are_named(parameters: dict[str, str], error: str) -> None:
    with pytest.raises(TpyError, match=error):
        settings(**parameters)


def test_memory_for_less_than_a_block_is_said() -> None:
    with pytest.raises(Unavailable, match="a KV cache of 1 blocks needs about"):
        settings(BLOCK_BYTES)
