"""ModelFacts: read from the files of a language model, without the engine: GGUF metadata, or the `config.json` of an export."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tpy.backend import ModelContext
from tpy.errors import InvalidArgument, Unavailable
from tpy.files import read_file
from tpy.gguf import TEMPLATE, TOKENS, special_tokens
from tpy.units import MIB
from tpy_backends.file_backend import model_path
from tpy_backends.openvino_genai.gguf import read_metadata

GGUF_FILE: Final = "model.gguf"
EXPORTED_FILE: Final = "openvino_model.xml"
_CONFIG_BYTES_MAX: Final = 16 * MIB
_TEMPLATES: Final = ("chat_template.jinja", "tokenizer_config.json")


class LanguageModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`path` is what the engine opens: the file, or the folder of an export. `context` is the number of tokens that the model was
    made for. The numbers that give the size of its KV cache are 0 where the files do not say. `parameters` are for the OpenAI
    frontend, which reads a model's chat template from them."""

    path: Path
    context: int
    layers: int = 0
    kv_width: int = 0
    """Numbers in the key of a token, of all heads in a layer."""
    vocabulary: int = 0
    """Tokens that the model knows."""
    parameters: Mapping[str, str] = {}


def facts_of(context: ModelContext) -> LanguageModelFacts:
    """Raises Unavailable when there is no file, InvalidArgument for one that is not what its name says."""
    path = model_path(context, (GGUF_FILE, EXPORTED_FILE))
    if path.suffix == ".gguf":
        return _of_gguf(path)
    if path.name == EXPORTED_FILE or path.is_dir():
        folder = path if path.is_dir() else path.parent
        return _of_export(folder, context.name)
    raise Unavailable(f"model '{context.name}': '{path.name}' is neither a GGUF file nor an OpenVINO export ('{EXPORTED_FILE}')")


def _of_gguf(path: Path) -> LanguageModelFacts:
    found = read_metadata(path)
    architecture = str(found.get("general.architecture", ""))

    def number(name: str) -> int:
        value = found.get(f"{architecture}.{name}", 0)
        value = max(value) if isinstance(value, tuple) and value else value
        return value if isinstance(value, int) else 0

    heads = number("attention.head_count")
    width = number("attention.key_length") or (number("embedding_length") // heads if heads else 0)
    parameters = {}
    template = found.get(TEMPLATE)
    if isinstance(template, str):
        parameters = {"chat_template": template, **special_tokens(found)}
    return LanguageModelFacts(
        path=path,
        context=number("context_length"),
        layers=number("block_count"),
        kv_width=width * (number("attention.head_count_kv") or heads),
        vocabulary=len(found.get(TOKENS, ())),
        parameters=parameters,
    )


def _of_export(folder: Path, model: str) -> LanguageModelFacts:
    found = _json(folder / "config.json", model)
    text = found.get("text_config")
    if isinstance(text, dict):  # of a model that takes images, too
        found = text

    def number(name: str) -> int:
        value = found.get(name)
        return value if isinstance(value, int) else 0

    heads = number("num_attention_heads")
    width = number("head_dim") or (number("hidden_size") // heads if heads else 0)
    has_template = any((folder / name).is_file() for name in _TEMPLATES)
    return LanguageModelFacts(
        path=folder,
        context=number("max_position_embeddings"),
        layers=number("num_hidden_layers"),
        kv_width=width * (number("num_key_value_heads") or heads),
        vocabulary=number("vocab_size"),
        parameters={"tokenizer": str(folder.absolute())} if has_template else {},
    )


def _json(path: Path, model: str) -> dict[str, Any]:
    try:
        found = json.loads(read_file(path, bytes_max=_CONFIG_BYTES_MAX))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"model '{model}': cannot read '{path.name}' of the OpenVINO export: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"model '{model}': '{path.name}' of the OpenVINO export is not a JSON object")
    return found
