"""The target of `tpy serve PATH`: a model repository, or one model for which a repository is made of links.

A repository is served as it is. A folder that is a model itself (config.pbtxt, or a version folder with a model file), a folder
with one model file in it, and a model file alone are linked into a temporary repository, so that the server needs to know nothing
of them and follows their changes all the same.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tpy.cli.parsing import UsageError
from tpy.config.known_backends import BACKEND_OF_FILE, BACKEND_OF_SUFFIX
from tpy.config.model_files import advice_for_file, files_beside, unserved_files
from tpy.echo import echo

_CONFIG = "config.pbtxt"
_CONFIGS = "configs"


class ServeTarget(NamedTuple):
    """The repository to serve; `taken` is a line for people that says what was taken for what, "" where nothing was."""

    repository: Path
    taken: str = ""


class _Single(NamedTuple):
    """One model: its name, the folder of version 1 or of the whole model, and the file that is the model."""

    name: str
    path: Path
    backend: str = ""


def require_repository(path: Path) -> None:
    """Raises UsageError for what is not a model repository."""
    if not path.is_dir():
        what = "no such folder" if not path.exists() else "a file"
        raise UsageError(f"{path}: {what}; expected a model repository, a folder with a folder for each model")
    if is_model(path):
        above = path.resolve().parent
        raise UsageError(f"{path}: one model; expected the repository that it is in: {above}")


@contextmanager
def serve_target(path: Path, model_name: str = "") -> Iterator[ServeTarget]:
    """The repository that `path` stands for; what was made for it is removed at the end. `model_name` is that of a model that is
    served alone, in place of its file's or folder's. Raises UsageError."""
    if model_name and _legal_name(model_name) != model_name:
        raise UsageError(f"--model-name: expected letters, digits, '_', '-' and '.', got '{echo(model_name)}'")
    if path.is_file():
        single = _named(_file(path), model_name)
        taken = f"{path} is taken for model '{single.name}' (backend {single.backend})"
    elif not path.is_dir():
        raise UsageError(f"{path}: no such file or folder; expected a model repository, the folder of a model, or a model file")
    elif is_model(path):
        single = _named(_Single(_name_of(path), path.resolve()), model_name)
        taken = f"{path} is taken for one model, '{single.name}'; a repository is the folder above it"
    elif (only := _only_model_file(path)) is not None:
        single = _Single(_name_of(path), path.resolve(), BACKEND_OF_FILE[only]) if only in BACKEND_OF_FILE else _file(path / only)
        single = _named(single, model_name)
        taken = f"{path} is taken for model '{single.name}': {only} in it is version 1 (backend {single.backend})"
    else:
        _require_models(path)
        ignored = f"--model-name {model_name} is not used: {path} is a repository, whose models are named as their folders"
        yield ServeTarget(path, ignored if model_name else "")
        return
    with _linked(single) as repository:
        yield ServeTarget(repository, f"{taken}; repository made of links: {repository}")


def is_model(folder: Path) -> bool:
    """Returns True if a folder is a model: it has a configuration, or a version folder that is not itself a model. A folder that
    cannot be read, such as lost+found, is not a model."""
    try:
        if (folder / _CONFIG).exists() or (folder / _CONFIGS).is_dir():
            return True
        versions = _versions(folder)
    except PermissionError:
        return False
    return bool(versions) and not any(is_model(version) for version in versions)


def _versions(folder: Path) -> list[Path]:
    return [entry for entry in sorted(folder.iterdir()) if entry.name.isdecimal() and entry.is_dir()]


def _only_model_file(folder: Path) -> str | None:
    """The one model file in a folder that holds no models; None when there are several. `model.NAME` comes before others."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    if any(entry.is_dir() and is_model(entry) for entry in entries):
        return None
    known = [filename for filename in BACKEND_OF_FILE if any(entry.name == filename for entry in entries)]
    if known:
        return known[0]
    files = [entry.name for entry in entries if entry.is_file() and entry.suffix in BACKEND_OF_SUFFIX]
    if len(files) > 1:
        raise UsageError(
            f"{folder} holds {len(files)} model files and no model folder: {', '.join(files)}; "
            f"serve one of them (tpy serve {folder / files[0]}), or make a folder of each (tpy init NAME --from FILE)"
        )
    return files[0] if files else None


def _require_models(folder: Path) -> None:
    """Raise UsageError for a folder with nothing that could be a model, where something in it says what was meant."""
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
    folders = [entry for entry in entries if entry.is_dir()]
    unserved = unserved_files([entry.name for entry in entries if entry.is_file()])
    if not folders and unserved:
        raise UsageError(f"{folder}: {advice_for_file(unserved[0], folder=str(folder))}")
    below = [entry for entry in folders if _holds_models(entry)]
    if below and not any(is_model(entry) for entry in folders):
        raise UsageError(f"{folder} holds no model, but {below[0]} does; did you mean: tpy serve {below[0]}")


def _holds_models(folder: Path) -> bool:
    try:
        return any(child.is_dir() and is_model(child) for child in folder.iterdir())
    except PermissionError:
        return False


def _file(path: Path) -> _Single:
    """A model file by itself. Raises UsageError for one that no backend serves."""
    backend = BACKEND_OF_FILE.get(path.name) or BACKEND_OF_SUFFIX.get(path.suffix)
    if backend is None:
        raise UsageError(f"{path}: {advice_for_file(path.name, folder=str(path.parent))}")
    name = _name_of(path.parent) if path.name in BACKEND_OF_FILE else _legal_name(path.stem)
    return _Single(name, path.resolve(), backend)


def _name_of(folder: Path) -> str:
    """The name of the folder; of a version folder, that of the one above it."""
    resolved = folder.resolve()
    return _legal_name(resolved.parent.name if resolved.name.isdecimal() else resolved.name)


def _named(single: _Single, model_name: str) -> _Single:
    return single._replace(name=model_name) if model_name else single


def _legal_name(text: str) -> str:
    """A model name of a file's or folder's name: what stands in URLs as it is."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text).lstrip(".") or "model"


@contextmanager
def _linked(single: _Single) -> Iterator[Path]:
    """A repository in the system's place for temporary files that holds this one model."""
    repository = Path(tempfile.mkdtemp(prefix="tpy-serve-"))
    try:
        _fill(repository / single.name, single)
        yield repository
    finally:
        shutil.rmtree(repository, ignore_errors=True)


def _fill(model: Path, single: _Single) -> None:
    source = single.path
    if not single.backend:
        model.symlink_to(source)
    elif source.is_dir():
        model.mkdir()
        (model / "1").symlink_to(source)
    else:
        (model / "1").mkdir(parents=True)
        for file in (source, *files_beside(source)):
            (model / "1" / file.name).symlink_to(file)
        if source.name not in BACKEND_OF_FILE:
            (model / _CONFIG).write_text(f'backend: "{single.backend}"\ndefault_model_filename: "{source.name}"\n')
