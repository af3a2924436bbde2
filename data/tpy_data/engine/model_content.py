"""What a model version is, whoever serves it: a digest of its configuration and files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tpy.config import ModelConfig
from tpy.limits import MODEL_FILES_MAX

_BLOCK_BYTES = 1 << 20


def content_digest(config: ModelConfig, model_directory: Path, version_directory: Path) -> str:
    """Two versions have the same digest when their configurations are equal and so are the names and bytes of their files: all
    in the version's folder, and in the model's, other versions' folders left out.

    Blocking: reads every byte. Raises OSError.
    """
    digest = hashlib.blake2b(msgspec.json.encode(config), digest_size=20)
    for file in sorted(_files(model_directory, version_directory)):
        digest.update(f"\0{file.relative_to(model_directory).as_posix()}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def _files(model_directory: Path, version_directory: Path) -> Iterator[Path]:
    """Compiled Python is left out: it is written while a model is loaded."""
    count = 0
    for folder, names, files in os.walk(model_directory, followlinks=True):
        here = Path(folder)
        if here == model_directory:
            names[:] = [name for name in names if not name.isdigit() or here / name == version_directory]
        names[:] = [name for name in names if name != "__pycache__"]
        for file in files:
            count += 1
            if count > MODEL_FILES_MAX:
                raise OSError(f"more than {MODEL_FILES_MAX} files below {model_directory}")
            if (here / file).is_file():
                yield here / file
