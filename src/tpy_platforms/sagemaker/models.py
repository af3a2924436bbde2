"""The models of a multi-model endpoint: where SageMaker has put their files, and which are loaded."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.files import UnusableFile, read_file
from tpy.limits import CONFIG_BYTES_MAX

_URL = re.compile(r"(/opt/ml/models/[0-9A-Za-z._]+)/(model)/?([0-9A-Za-z._]+)?")
_ENSEMBLE = re.compile(rb'platform:\s*"ensemble"')
_FORBIDDEN = ("/dev/", "/proc/", "/sys/")

_OUT_OF_MEMORY = (
    "CUDA out of memory",
    "CUDA_OUT_OF_MEMORY",
    "Out of memory",
    "Out Of Memory",
    "out of memory",
    "MemoryError",
    "OutOfMemory",
    "OOM",
    "Dst tensor is not initialized",
    "Src tensor is not initialized",
    "CNMEM_STATUS_OUT_OF_MEMORY",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "Failed to allocate memory",
    "failed to allocate memory",
    "No space left on device",
)


class SageMakerModel(NamedTuple):
    """A model that SageMaker has loaded. `target` is the name that it is served by, `repository` where it is."""

    target: str
    repository: str


class ModelPlace(NamedTuple):
    """A repository, and the folder in it that is the model."""

    repository: Path
    folder: str


def is_out_of_memory(message: str) -> bool:
    """Returns True for an error after which SageMaker is to unload other models: it is told by status 507."""
    return any(text in message for text in _OUT_OF_MEMORY)


def find_model(url: str) -> ModelPlace:
    """The model at a URL of a load call, as Triton finds it: the folder itself if it has a configuration, else the ensemble
    in it, else the model in it. Blocks. Raises InvalidArgument for another place than SageMaker's."""
    path = os.path.abspath(os.path.normpath(url))
    if f"{path}/".startswith(_FORBIDDEN):
        raise InvalidArgument(f"Invalid \"url\" '{echo(url)}': it cannot be in /dev/, /proc/, or /sys/")
    found = _URL.fullmatch(path)
    if found is None:
        raise InvalidArgument(
            f"Invalid \"url\" '{echo(url)}': expected a path of the form /opt/ml/models/<hash>/model[/<subdir>]"
        )
    folder = Path(path)
    if (folder / "config.pbtxt").is_file():
        return ModelPlace(folder.parent, folder.name)
    try:
        inside = sorted(each.name for each in os.scandir(folder) if each.is_dir() and not each.name.startswith("."))
    except OSError as error:
        raise InvalidArgument(f"failed to register '{folder}', repository not found: {error.strerror}") from None
    if not inside:
        raise InvalidArgument(f"failed to register '{folder}': there is no model in it")
    ensembles = [name for name in inside if _is_ensemble(folder / name / "config.pbtxt")]
    return ModelPlace(folder, (ensembles or inside)[-1])


def _is_ensemble(config: Path) -> bool:
    try:
        return _ENSEMBLE.search(read_file(config, bytes_max=CONFIG_BYTES_MAX)) is not None
    except (OSError, UnusableFile):
        return False
