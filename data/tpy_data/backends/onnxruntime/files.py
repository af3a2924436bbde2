"""Finds the files of a model."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from tpy.backend import InstancePlacement, ModelContext
from tpy.config.model_config import InstanceKind
from tpy.config.model_files import listed_files
from tpy.errors import InvalidArgument, Unavailable
from tpy_data.gpus import compute_capability

DEFAULT_FILENAME = "model.onnx"


def model_file(context: ModelContext, placement: InstancePlacement) -> Path:
    """The file to load: by the GPU's compute capability if `cc_model_filenames` has it, else `default_model_filename`; where
    that is a directory, its model.onnx (with whatever lies beside it).

    Raises Unavailable when it is missing or no file, InvalidArgument when its name leaves the version directory.
    """
    config = context.config
    name = config.default_model_filename or DEFAULT_FILENAME
    if config.cc_model_filenames and placement.kind is InstanceKind.KIND_GPU:
        major, minor = compute_capability(placement.device_id)
        name = config.cc_model_filenames.get(f"{major}.{minor}", name)
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise InvalidArgument(f"model '{config.name}': model filename '{name}' must be inside the version directory")
    path = context.version_directory / relative
    if path.is_dir():
        path = path / DEFAULT_FILENAME
    if not path.exists():
        raise Unavailable(f"unable to find '{path}' for model instance '{config.name}'; {_found(path.parent)}")
    if not path.is_file():  # opening a pipe would wait for its writer
        raise Unavailable(f"'{path}' is not a file, for model instance '{config.name}'")
    return path


def _found(folder: Path) -> str:
    """The files in place of the missing one, and the next step."""
    names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    others = sorted(name for name in names if name.endswith(".onnx"))
    step = f'; rename {others[0]}, or set default_model_filename: "{others[0]}" in config.pbtxt' if others else ""
    return f"the folder holds {listed_files(names)}{step}"
