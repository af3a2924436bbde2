"""FileBackend: a backend of models whose files say their inputs and outputs by name; and where a model's files are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

from tpy.backend import BackendCapabilities, InstancePlacement, LoadedModel, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.config.model_files import listed_files
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy_backends.completion import complete, is_complete
from tpy_backends.signature import Signature
from tpy_data.gpus import compute_capability

Advice = Callable[[Sequence[str]], str]
"""Returns the next step for a folder that holds these names, folders with a "/" at the end; "" for none."""


def model_path(
    context: ModelContext, names: Sequence[str], *, placement: InstancePlacement | None = None, advice: Advice | None = None
) -> Path:
    """The file or folder to load: by the GPU's compute capability if `cc_model_filenames` has it, else `default_model_filename`.
    `names` are the backend's usual ones: the first is the default, and where one of them is missing, another will do.

    Raises Unavailable when it is missing, InvalidArgument when its name leaves the version directory.
    """
    config = context.config
    name = config.default_model_filename or names[0]
    if config.cc_model_filenames and placement is not None and placement.kind is InstanceKind.KIND_GPU:
        major, minor = compute_capability(placement.device_id)
        name = config.cc_model_filenames.get(f"{major}.{minor}", name)
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise InvalidArgument(f"model '{config.name}': model filename '{name}' must be inside the version directory")
    path = context.version_directory / relative
    if not path.exists() and name in names:
        path = next((found for other in names if (found := context.version_directory / other).exists()), path)
    if not path.exists():
        raise _missing(context, path, advice or _rename(names))
    return path


def model_file(
    context: ModelContext,
    names: Sequence[str],
    *,
    placement: InstancePlacement | None = None,
    advice: Advice | None = None,
    inside: str = "",
) -> Path:
    """As `model_path`, but a file; where there is a folder of that name, the file `inside` it. Raises Unavailable for anything
    else."""
    path = model_path(context, names, placement=placement, advice=advice)
    if inside and path.is_dir():
        path = path / inside
        if not path.exists():
            raise _missing(context, path, advice or _rename(names))
    if not path.is_file():  # opening a pipe would wait for its writer
        raise Unavailable(f"'{path}' is not a file, for model instance '{context.config.name}'")
    return path


def read_whole(path: Path, model: str) -> bytes:
    """The content of a model's file. Raises Internal where memory is short."""
    try:
        return path.read_bytes()
    except MemoryError as error:
        size = path.stat().st_size
        raise Internal(f"unable to load model '{model}': memory is short for the {size} bytes of '{path.name}'") from error


def _missing(context: ModelContext, path: Path, advice: Advice) -> Unavailable:
    folder = path.parent
    names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    step = advice(names)
    return Unavailable(
        f"unable to find '{path}' for model instance '{context.config.name}'; the folder holds {listed_files(names)}"
        + (f"; {step}" if step else "")
    )


def _rename(names: Sequence[str]) -> Advice:
    """Advice to rename a file of the right kind."""
    suffixes = tuple(PurePosixPath(name).suffix for name in names)

    def advice(found: Sequence[str]) -> str:
        others = sorted(name for name in found if name.rstrip("/").endswith(suffixes))
        return f'rename {others[0]}, or set default_model_filename: "{others[0].rstrip("/")}" in config.pbtxt' if others else ""

    return advice


class FileModel(LoadedModel, Protocol):
    """A model whose files are found. What costs much to load waits for `prepare`."""

    def prepare(self) -> None:
        """Load what the first instance needs and check the configuration, so that a broken model fails here. Raises TpyError."""
        ...

    def signature(self) -> Signature:
        """Read what the files say. Raises TpyError."""
        ...


class FileBackend:
    """One per server. Completes configurations, and loads what `open_model` finds."""

    def __init__(
        self, capabilities: BackendCapabilities, open_model: Callable[[ModelContext], FileModel], *, default_max_batch_size: int
    ) -> None:
        self._capabilities = capabilities
        self._open_model = open_model
        self._default_max_batch_size = default_max_batch_size

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """From the model's files. Raises TpyError."""
        config = context.config
        if is_complete(config):
            context.log("verbose", f"skipping model configuration auto-complete for '{config.name}': inputs and outputs given")
            return config
        signature = self._open_model(context).signature()
        return complete(config, signature, default_max_batch_size=self._default_max_batch_size)

    def load(self, context: ModelContext) -> LoadedModel:
        """Loads what the first instance needs at once, so that a broken model fails here."""
        model = self._open_model(context)
        model.prepare()
        return model

    def close(self) -> None:
        pass
