"""Reads folders and documents that somebody else wrote, within bounds."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import msgspec.yaml

from tpy.files import UnusableFile, read_file
from tpy.limits import MODEL_ARCHIVE_ENTRIES_MAX
from tpy_tools.commands.importing.core.plan import Unimportable

DOCUMENT_BYTES_MAX: Final = 1024 * 1024
"""A signature of thousands of columns has some 100 KB."""


def read_yaml_file(path: Path) -> Mapping[str, Any]:
    """A YAML file of names and values. Raises Unimportable."""
    try:
        return read_yaml(read_file(path, bytes_max=DOCUMENT_BYTES_MAX), str(path))
    except UnusableFile as error:
        raise Unimportable(str(error)) from None


def read_yaml(text: bytes, path: str) -> Mapping[str, Any]:
    """YAML of names and values; `path` is for messages. Raises Unimportable."""
    # Chains of merges would let a few lines stand for gigabytes.
    if b"*" in text and b"&" in text and b"<<" in text:
        raise Unimportable(f"{path}: YAML with merged anchors, which is not read")
    try:
        document = msgspec.yaml.decode(text)
    except ImportError:
        raise Unimportable("this needs PyYAML: install pyyaml, or tpy with its extra import") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unimportable(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise Unimportable(f"{path}: expected names and values")
    return document


def read_json(text: bytes, path: str) -> Mapping[str, Any]:
    """JSON of names and values; `path` is for messages. Raises Unimportable."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unimportable(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise Unimportable(f"{path}: expected an object of names and values")
    return document


def files_of(source: Path, *, leave_out: Collection[Path] = (), within: Path | None = None) -> frozenset[str]:
    """All files by path, without the folders `leave_out`. Raises Unimportable for a link that leads out of the folder, or out of
    the folder `within` around it, as its target would be copied."""
    root = source.resolve() if within is None else within.resolve()
    found: set[str] = set()
    for folder, folders, names in os.walk(source):
        folders[:] = [name for name in folders if Path(folder, name) not in leave_out]
        for name in (*folders, *names):
            path = Path(folder, name)
            relative = path.relative_to(source)
            if path.is_symlink() and (path.is_dir() or not path.resolve().is_relative_to(root)):
                raise Unimportable(f"{relative}: a link that leads out of the folder, or to a folder")
            if name in names:
                if not path.is_file():
                    raise Unimportable(f"{relative}: not a file")
                found.add(relative.as_posix())
        if len(found) > MODEL_ARCHIVE_ENTRIES_MAX:
            raise Unimportable(f"more than {MODEL_ARCHIVE_ENTRIES_MAX} files")
    return frozenset(found)
