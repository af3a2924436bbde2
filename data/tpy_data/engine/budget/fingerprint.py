"""The fingerprint of a version: what is remembered of it counts while its files and configuration are the same."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from tpy.errors import Unavailable
from tpy.files import walk
from tpy.state import DesiredModel, DesiredVersion
from tpy_data.engine.budget.core.sizes import ModelFiles

_PASSING: Final = frozenset({"__pycache__"})
"""Written while a model is loaded."""


def files_of(model: DesiredModel, version: DesiredVersion) -> ModelFiles:
    """The files of a version and its configuration, by name, size and time. Blocking. Raises Unavailable."""
    digest = hashlib.blake2b(msgspec.json.encode(model.config), digest_size=16)
    size_bytes = 0
    try:
        for file in walk(version.directory, skip=_PASSING.__contains__).files:
            size_bytes += file.status.st_size
            digest.update(f"\0{file.path}\0{file.status.st_size}\0{file.status.st_mtime_ns}".encode())
    except OSError as error:
        raise Unavailable(f"the files of {model.id} version {version.version} cannot be read: {error}") from None
    return ModelFiles(digest.hexdigest(), size_bytes)
