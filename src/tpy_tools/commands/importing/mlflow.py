"""Reads the folder of an MLflow model: its MLmodel, names of files, and the first bytes of some. Nothing is loaded."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

from tpy.files import open_regular
from tpy_tools.commands.importing.core.mlflow import MlflowFolder
from tpy_tools.commands.importing.core.plan import text_of
from tpy_tools.commands.importing.folders import files_of, read_yaml_file

_HEAD_BYTES: Final = 64


def is_mlflow_model(source: Path) -> bool:
    """Returns True for a folder with an MLmodel."""
    return (source / "MLmodel").is_file()


def read_mlflow(source: Path) -> MlflowFolder:
    """Facts of the folder. Raises Unimportable."""
    document = read_yaml_file(source / "MLmodel")
    files = files_of(source)
    meta = read_yaml_file(source / "registered_model_meta") if "registered_model_meta" in files else {}
    return MlflowFolder(
        name=text_of(meta.get("model_name")) or source.resolve().name,
        document=document,
        files=files - {"MLmodel", "registered_model_meta"},
        kinds={path: kind for path in files if (kind := _kind(source / path))},
    )


def _kind(path: Path) -> str:
    """The format that the first bytes of a model file show; "" for files that are known by their names."""
    if path.suffix == ".pth":
        return "torchscript" if _is_torchscript(path) else ""
    if path.suffix not in (".xgb", ".json", ".ubj", ".model", ".lgb", ".txt", ".bin"):
        return ""
    return tree_format(path)


def tree_format(path: Path) -> str:
    """The format of a file of XGBoost or LightGBM, by its first bytes; "" for another."""
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
