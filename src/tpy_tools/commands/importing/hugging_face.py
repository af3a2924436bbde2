"""Reads a folder of a Hugging Face model: its JSON files, and names of all others. Nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from tpy.files import UnusableFile, open_regular, read_file
from tpy_tools.commands.importing.core.hugging_face import HuggingFaceFolder
from tpy_tools.commands.importing.core.plan import Unimportable
from tpy_tools.commands.importing.folders import DOCUMENT_BYTES_MAX, files_of, read_json

_READ: Final = (
    *("config.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json", "generation_config.json"),
    *("sentence_bert_config.json", "1_Pooling/config.json"),
)
_INDEX: Final = "model.safetensors.index.json"
_INDEX_BYTES_MAX: Final = 64 * DOCUMENT_BYTES_MAX
"""A model of a thousand files names a hundred thousand tensors."""

_TOKENIZER_BYTES_MAX: Final = 16 * DOCUMENT_BYTES_MAX
"""Tokens that a model adds are in tokenizer_config.json: some thousands, in large ones."""

_STUB: Final = b"version https://git-lfs"
_WEIGHTS: Final = (".safetensors", ".bin", ".gguf", ".onnx", ".xml", ".json", ".model")
_SIGNS: Final = ("model_type", "architectures", "_class_name")

_decode_list = msgspec.json.Decoder(list[Any]).decode


def is_hugging_face_source(source: Path) -> bool:
    """Returns True for a folder with a config.json of transformers, with GGUF files, of an adapter or of diffusers."""
    if not source.is_dir():
        return False
    if any((source / name).is_file() for name in ("adapter_config.json", "model_index.json", "openvino_model.xml")):
        return True
    if (source / "config.json").is_file():
        try:
            document = _document(source, "config.json")
        except Unimportable:
            return False
        return any(sign in document for sign in _SIGNS)
    return any(source.glob("*.gguf"))


def read_hugging_face(source: Path) -> HuggingFaceFolder:
    """Facts of the folder. Raises Unimportable."""
    files = files_of(source, within=_cache_of(source))
    documents: dict[str, Mapping[str, Any]] = {name: _document(source, name) for name in (*_READ, _INDEX) if name in files}
    if "modules.json" in files:
        documents["modules.json"] = {"modules": _list(source / "modules.json")}
    return HuggingFaceFolder(
        name=_name_of(source),
        path=str(source.resolve()),
        documents=documents,
        files=files,
        stubs=frozenset(path for path in files if path.endswith(_WEIGHTS) and _is_stub(source / path)),
        exports=_has_exporter(),
    )


def _has_exporter() -> bool:
    try:
        return all(find_spec(name) is not None for name in ("optimum.exporters.onnx", "onnx", "onnxruntime"))
    except ModuleNotFoundError:
        return False


def _cache_of(source: Path) -> Path | None:
    """The folder of a model in the library's cache, where files are links to `blobs`; None for other folders."""
    place = source.resolve()
    if place.parent.name == "snapshots" and place.parent.parent.name.startswith("models--"):
        return place.parent.parent
    return None


def _name_of(source: Path) -> str:
    """The folder's name; in the library's cache, the model's without its owner."""
    cache = _cache_of(source)
    return source.resolve().name if cache is None else cache.name.rpartition("--")[2]


def _document(source: Path, name: str) -> Mapping[str, Any]:
    most = _INDEX_BYTES_MAX if name == _INDEX else _TOKENIZER_BYTES_MAX if name.startswith("tokenizer") else DOCUMENT_BYTES_MAX
    try:
        return read_json(read_file(source / name, bytes_max=most), name)
    except UnusableFile as error:
        raise Unimportable(str(error)) from None


def _list(path: Path) -> list[Any]:
    try:
        return _decode_list(read_file(path, bytes_max=DOCUMENT_BYTES_MAX))
    except (UnusableFile, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unimportable(f"{path.name}: not a JSON list: {error}") from None


def _is_stub(path: Path) -> bool:
    with open_regular(path) as file:
        return file.read(len(_STUB)) == _STUB
