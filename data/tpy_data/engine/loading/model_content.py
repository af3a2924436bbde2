"""The identity of a model version, the same on every server: a digest of its configuration and files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from tpy.config import ModelConfig
from tpy.files import read_blocks, walk

_PASSING = frozenset({"__pycache__"})
"""Compiled Python is left out: it is written while a model is loaded."""


def content_digest(config: ModelConfig, model_directory: Path, version_directory: Path) -> str:
    """Two versions have the same digest when their configurations are equal and so are the names and bytes of their files: all
    in the version's folder, and in the model's, other versions' folders left out.

    Blocking: reads every byte. Raises OSError.
    """
    digest = hashlib.blake2b(msgspec.json.encode(config), digest_size=20)
    others = {name for name in os.listdir(model_directory) if name.isdigit() and model_directory / name != version_directory}
    for file in walk(model_directory, skip=_PASSING.__contains__).files:
        if file.path.partition("/")[0] in others:
            continue
        digest.update(f"\0{file.path}\0{file.status.st_size}\0".encode())
        for block in read_blocks(model_directory / file.path):
            digest.update(block)
    return digest.hexdigest()
