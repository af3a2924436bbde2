"""The fil backend, and its loaded models."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, ModelContext, ModelInstance
from tpy.config.model_config import InstanceKind
from tpy_backends.completion import default_max_batch_size
from tpy_backends.fil.forest import VERSION, Forest
from tpy_backends.fil.settings import FILENAMES, FilModelSettings, model_settings
from tpy_backends.file_backend import FileBackend, model_file
from tpy_backends.named_tensors import named_instance
from tpy_backends.signature import Signature
from tpy_backends.validation import validate


class FilModel:
    """A `LoadedModel`. Trees are in memory once; every instance runs them in its own thread."""

    def __init__(self, context: ModelContext) -> None:
        """Reads the file. Raises TpyError."""
        self._context = context
        self._settings = model_settings(context.config)
        self._forest = Forest(_file(context, self._settings), context.config, self._settings)

    def signature(self) -> Signature:
        """As the file has it, which Triton's backend does not read for it."""
        return self._forest.signature

    def prepare(self) -> None:
        """As `FileModel`: checks the configuration. Raises InvalidArgument."""
        config, unused = self._context.config, self._settings.without_effect
        if unused:
            self._context.log("warning", f"model '{config.name}': parameters {', '.join(unused)} have no effect on a CPU")
        if (threads := self._forest.threads) != self._settings.threads:
            self._context.log("warning", f"model '{config.name}': cpu_nthread is {threads}, the most that OpenMP may use here")
        validate(config, self._forest.signature)

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """As `LoadedModel`."""
        return named_instance(self._forest, self._forest.signature, self._context.config, any_thread=True)

    def unload(self) -> None:
        """As `LoadedModel`: the trees go with the last instance."""
        del self._forest


def _file(context: ModelContext, settings: FilModelSettings) -> Path:
    """The usual file of the model's type, if it is there; a usual name in the configuration may have been filled in."""
    preferred = FILENAMES.get(settings.model_type, "")
    names = sorted(FILENAMES.values(), key=lambda name: name != preferred)
    if context.config.default_model_filename in names and preferred and (context.version_directory / preferred).is_file():
        config = msgspec.structs.replace(context.config, default_model_filename=preferred)
        context = msgspec.structs.replace(context, config=config)
    return model_file(context, names)


def fil_backend(settings: BackendSettings) -> FileBackend:
    """Raises InvalidArgument for a bad `--backend-config` value."""
    capabilities = BackendCapabilities(
        name=settings.name,
        default_model_filename="",  # one for each format
        devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}),
        gpus_unusable="tpy runs trees on the CPU: use KIND_CPU or KIND_AUTO",
        version=VERSION,
    )
    return FileBackend(capabilities, FilModel, default_max_batch_size=default_max_batch_size(settings.config))
