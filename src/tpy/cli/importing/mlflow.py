"""Reads the folder of an MLflow model: its MLmodel, names of files, and the first bytes of some. Nothing is loaded."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import msgspec.yaml

from tpy.cli.importing.core.mlflow import MlflowFolder
from tpy.cli.importing.core.plan import Unimportable, text_of
from tpy.files import UnusableFile, open_regular, read_file

_YAML_BYTES_MAX: Final = 1024 * 1024
"""A signature of thousands of columns has some 100 KB."""

_HEAD_BYTES: Final = 64

_FILES_MAX: Final = 10_000
"""A folder with more is something else than a model."""


def is_mlflow_model(source: Path) -> bool:
    """Returns True for a folder with an MLmodel."""
    return (source / "MLmodel").is_file()


def read_mlflow(source: Path) -> MlflowFolder:
    """Facts of the folder. Raises Unimportable."""
    document = _yaml(source / "MLmodel")
    files = _files(source)
    meta = _yaml(source / "registered_model_meta") if "registered_model_meta" in files else {}
    return MlflowFolder(
        name=text_of(meta.get("model_name")) or source.resolve().name,
        document=document,
        files=files - {"MLmodel", "registered_model_meta"},
        kinds={path: kind for path in files if (kind := _kind(source / path))},
    )


def _yaml(path: Path) -> Mapping[str, Any]:
    try:
        text = read_file(path, bytes_max=_YAML_BYTES_MAX)
        # Chains of merges would let a few lines stand for gigabytes.
        if b"*" in text and b"&" in text and b"<<" in text:
            raise Unimportable(f"{path}: YAML with merged anchors, which MLflow does not write")
        document = msgspec.yaml.decode(text)
    except UnusableFile as error:
        raise Unimportable(str(error)) from None
    except ImportError:
        raise Unimportable("this needs PyYAML: install pyyaml, or tpy with its extra import") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unimportable(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise Unimportable(f"{path}: expected names and values")
    return document


def _files(source: Path) -> frozenset[str]:
    """All files by path. Raises Unimportable for a link that leads out of the folder, as its target would be copied."""
    root = source.resolve()
    found: set[str] = set()
    for folder, folders, names in os.walk(source):
        for name in (*folders, *names):
            path = Path(folder, name)
            relative = path.relative_to(source)
            if path.is_symlink() and (path.is_dir() or not path.resolve().is_relative_to(root)):
                raise Unimportable(f"{relative}: a link that leads out of the folder, or to a folder")
            if name in names:
                if not path.is_file():
                    raise Unimportable(f"{relative}: not a file")
                found.add(relative.as_posix())
        if len(found) > _FILES_MAX:
            raise Unimportable(f"more than {_FILES_MAX} files")
    return frozenset(found)


def _kind(path: Path) -> str:
    """The format that the first bytes of a model file show; "" for files that are known by their names."""
    if path.suffix == ".pth":
        return "torchscript" if _is_torchscript(path) else ""
    if path.suffix not in (".xgb", ".json", ".ubj", ".model", ".lgb", ".txt", ".bin"):
        return ""
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"tree\n"):
        return "lightgbm"
    if head.startswith(b"{L"):  # UBJSON counts the bytes of a name: L, and eight of them
        return "xgboost-ubj"
    return "xgboost-json" if b'"learner"' in head or b'"version"' in head else ""


def _is_torchscript(path: Path) -> bool:
    """Returns True for an archive of torch.jit.save: a module that torch.save pickled has no constants.pkl."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False
