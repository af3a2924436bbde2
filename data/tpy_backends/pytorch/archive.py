"""Tells of which kind a model file is, by what is in it: its name says little."""

from __future__ import annotations

import enum
import zipfile
from pathlib import Path

from tpy.errors import InvalidArgument
from tpy_backends.contents import contents_of


class FileKind(enum.Enum):
    """A kind of model file. The value is its name for people."""

    TORCH_SCRIPT = "TorchScript"
    EXPORTED_PROGRAM = "exported program"
    AOT_PACKAGE = "AOTInductor package"


_AOT_FOLDER = "data/aotinductor/"
_HOW_TO_SAVE = (
    "save the model with `torch.export.save` (model.pt2), with `torch._inductor.aoti_compile_and_package` (model.pt2), or as "
    "TorchScript with `.save()` (model.pt)"
)


def file_kind(path: Path) -> FileKind:
    """Raises InvalidArgument, with what to do, for a file that PyTorch's runtimes cannot load."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {_inside(name) for name in archive.namelist()}
    except zipfile.BadZipFile:
        raise InvalidArgument(
            f"'{path}' is not a model of PyTorch: it is not a zip archive, as all models have been since PyTorch 1.6"
            f"{contents_of(path, 'pytorch')}; {_HOW_TO_SAVE}"
        ) from None
    if any(name.startswith(_AOT_FOLDER) for name in names):
        return FileKind.AOT_PACKAGE
    if (
        any(name.startswith("models/") and name.endswith(".json") for name in names)
        or "serialized_exported_program.json" in names
    ):
        return FileKind.EXPORTED_PROGRAM
    if "constants.pkl" in names:
        return FileKind.TORCH_SCRIPT
    if "data.pkl" in names:
        raise InvalidArgument(
            f"'{path}' was written by `torch.save`: it holds weights or a pickled module, not a program; {_HOW_TO_SAVE}; or "
            "serve the "
            'weights with the class that they are for: `runtime: "model.py"`, and that class in model.py beside it'
        )
    raise InvalidArgument(f"'{path}' is a zip archive, but not a model of PyTorch; {_HOW_TO_SAVE}")


def _inside(name: str) -> str:
    """Without the one folder at the top of the archive, which is called after the file that it was first saved as."""
    return name if name.startswith(("data/", "models/")) else name.partition("/")[2] or name
