"""The fil backend: completes configurations, loads models."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, LoadedModel, ModelContext, ModelInstance
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy_data.backends.completion import DEFAULT_MAX_BATCH_SIZE, complete, is_complete
from tpy_data.backends.fil.forest import VERSION, Forest
from tpy_data.backends.fil.settings import FILENAMES, ModelSettings, model_settings
from tpy_data.backends.model_file import model_file
from tpy_data.backends.named_tensors import named_instance
from tpy_data.backends.parameter_values import parse_integer
from tpy_data.backends.validation import validate


class FilModel:
    """A `LoadedModel`. Trees are in memory once; every instance runs them in a thread of its own."""

    def __init__(self, context: ModelContext) -> None:
        """Reads the file. Raises TpyError."""
        config = context.config
        settings = model_settings(config)
        if settings.without_effect:
            context.log(
                "warning", f"model '{config.name}': parameters {', '.join(settings.without_effect)} have no effect on a CPU"
            )
        self._config = config
        self.forest = Forest(_file(context, settings), config, settings)

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """As `LoadedModel`."""
        return named_instance(self.forest, self.forest.signature, self._config)

    def unload(self) -> None:
        """As `LoadedModel`: the trees go with the last instance."""
        del self.forest


def _file(context: ModelContext, settings: ModelSettings) -> Path:
    """The usual file of the model's type, if it is there; a usual name in the configuration may have been filled in."""
    preferred = FILENAMES.get(settings.model_type, "")
    names = sorted(FILENAMES.values(), key=lambda name: name != preferred)
    if context.config.default_model_filename in names and preferred and (context.version_directory / preferred).is_file():
        config = msgspec.structs.replace(context.config, default_model_filename=preferred)
        context = msgspec.structs.replace(context, config=config)
    return model_file(context, names)


class FilBackend:
    """One per server."""

    def __init__(self, settings: BackendSettings) -> None:
        """Raises InvalidArgument for a bad `--backend-config` value."""
        self._default_max_batch_size = parse_integer(settings.config.get("default-max-batch-size", str(DEFAULT_MAX_BATCH_SIZE)))
        self._capabilities = BackendCapabilities(
            name=settings.name,
            default_model_filename="",  # one for each format
            devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}),
            gpus_unusable="tpy runs trees on the CPU: use KIND_CPU or KIND_AUTO",
            version=VERSION,
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """From the file, which Triton's backend does not. Raises TpyError."""
        config = context.config
        if is_complete(config):
            context.log("verbose", f"skipping model configuration auto-complete for '{config.name}': inputs and outputs given")
            return config
        silent = msgspec.structs.replace(context, log=lambda level, message: None)  # loading says it
        return complete(config, FilModel(silent).forest.signature, default_max_batch_size=self._default_max_batch_size)

    def load(self, context: ModelContext) -> LoadedModel:
        """Reads the file at once, so that a broken model fails here."""
        model = FilModel(context)
        validate(context.config, model.forest.signature)
        return model

    def close(self) -> None:
        pass
