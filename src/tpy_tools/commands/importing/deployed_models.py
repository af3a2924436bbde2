"""The models of a repository that come from MLflow: added, replaced and removed, one folder each.

A name is one path component of few characters, checked before anything is read or written. A folder that was not made from a
model of MLflow is never touched, nor is one that is a link.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from tpy.files import UnusableFile, read_file
from tpy_platforms.mlflow.core.signature import PARAMETER
from tpy_tools.commands.importing.core.mlflow import plan_mlflow
from tpy_tools.commands.importing.core.plan import Unimportable, require_name
from tpy_tools.commands.importing.mlflow import is_mlflow_model, read_mlflow
from tpy_tools.commands.importing.writing import perform

_CONFIG: Final = "config.pbtxt"
_CONFIG_BYTES_MAX: Final = 1024 * 1024


class DeployedModels:
    """The folder of a model repository. Every method raises Unimportable, and then has changed nothing, or what `load` raises."""

    def __init__(self, repository: str) -> None:
        if not repository:
            raise Unimportable("which folder is the model repository? Add ?repository=DIRECTORY to the target")
        self._repository = Path(repository).absolute()
        if not os.path.isdir(self._repository):  # unlike is_dir(), False for what may not be looked at
            raise Unimportable(f"repository: there is no folder {repository}")

    def has(self, name: str) -> bool:
        """Returns True if there is a folder, file or link of the name."""
        return os.path.lexists(self._repository / require_name(name))

    def add(self, name: str, source: Path, *, flavour: str, trust: bool, load: Callable[[], None]) -> None:
        """Make the folder of a model that is not there, and load it. What `load` raises undoes it."""
        if self.has(name):
            raise Unimportable(f"'{name}' is there already: update it, or delete it")
        with self._scratch() as scratch, contextlib.ExitStack() as undo:
            made = _imported(name, source, scratch, flavour=flavour, trust=trust)
            _move(made, self._repository / name, undo)
            load()
            undo.pop_all()

    def replace(self, name: str, source: Path, *, flavour: str, trust: bool, load: Callable[[], None]) -> None:
        """Put another model into the place of one, and load it. What `load` raises undoes it."""
        place = self._require(name)
        with self._scratch() as scratch, contextlib.ExitStack() as undo:
            made = _imported(name, source, scratch, flavour=flavour, trust=trust)
            _move(place, scratch / "former", undo)
            _move(made, place, undo)
            load()
            undo.pop_all()

    def remove(self, name: str) -> None:
        """Remove the folder of a model, if it is there."""
        if not self.has(name):
            return
        place = self._require(name)
        with self._scratch() as scratch:
            _move(place, scratch / name)

    def require_deployed(self, name: str) -> None:
        """Raise Unimportable for a name whose folder is not one of a model of MLflow."""
        if self.has(name):
            self._require(name)

    def _require(self, name: str) -> Path:
        """The folder of a model that was made from MLflow's. Raises Unimportable."""
        place = self._repository / require_name(name)
        if os.path.islink(place) or not os.path.isdir(place):
            raise Unimportable(f"'{name}' is not a deployment: there is no folder of the name in {self._repository}")
        try:
            text = read_file(place / _CONFIG, bytes_max=_CONFIG_BYTES_MAX)
        except (UnusableFile, OSError) as error:
            raise Unimportable(f"'{name}' is not a deployment: {error}") from None
        if f'"{PARAMETER}"'.encode() not in text:
            raise Unimportable(f"'{name}' was not made from a model of MLflow, and is left as it is")
        return place

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        """A folder that nobody serves, on the same disk. What cannot be deleted at the end stays there. Raises Unimportable."""
        with _explained():
            scratch = tempfile.TemporaryDirectory(prefix=".tpy-import-", dir=self._repository, ignore_cleanup_errors=True)
        with scratch as folder:
            yield Path(folder)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Raise Unimportable for an OSError."""
    try:
        yield
    except OSError as error:
        raise Unimportable(f"files of the model cannot be read or written: {error}") from error


def _move(source: Path, target: Path, undo: contextlib.ExitStack | None = None) -> None:
    """Rename a folder, and back when `undo` is left by an error. Raises Unimportable."""
    with _explained():
        source.rename(target)
    if undo is not None:
        undo.callback(_move, target, source)


def _imported(name: str, source: Path, scratch: Path, *, flavour: str, trust: bool) -> Path:
    """The model folder for a model of MLflow, whatever that calls itself. Raises Unimportable."""
    with _explained():
        if not is_mlflow_model(source):
            raise Unimportable("not a model of MLflow: there is no MLmodel")
        folder = msgspec.structs.replace(read_mlflow(source), name=name)
    flavours = folder.document.get("flavors")
    if flavour:
        if not isinstance(flavours, dict) or flavour not in flavours:
            raise Unimportable(f"the model has no flavor '{flavour}'")
        folder = msgspec.structs.replace(folder, document={**folder.document, "flavors": {flavour: flavours[flavour]}})
    with _explained():
        plan = perform(plan_mlflow(folder, trust=trust), source, scratch / "made")
    if plan.refused:
        hint = "--trust imports it all the same"
        raise Unimportable(plan.refused[0].becomes.replace(hint, "-C trust=true deploys it all the same"))
    return scratch / "made" / name
