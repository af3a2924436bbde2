"""Sources that are addresses in MLflow's registry or of its runs: MLflow fetches them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tpy_tools.commands.importing.core.plan import Unimportable
from tpy_tools.commands.importing.tools import run_module

_SCHEMES: Final = ("models:/", "runs:/", "mlflow-artifacts:/")


@contextmanager
def fetched(source: Path) -> Iterator[Path]:
    """The source itself, or the temporary folder of the model at an address, such as `models:/NAME/3`. Raises Unimportable."""
    address = str(source)
    if not address.startswith(_SCHEMES):
        yield source
        return
    if find_spec("mlflow") is None:
        raise Unimportable("an address of MLflow: install mlflow beside tpy, or name the folder of the model")
    scheme, *names = address.split("/")
    name = (names[0] if scheme == "models:" else names[-1]).partition("@")[0]
    with tempfile.TemporaryDirectory(prefix="tpy-import-") as place:
        folder = Path(place) / (name or "model")
        run_module("mlflow", "artifacts", "download", "-u", address, "-d", str(folder), failure="mlflow cannot fetch it")
        found = sorted(folder.rglob("MLmodel"), key=lambda path: len(path.parts))
        yield found[0].parent if found else folder
