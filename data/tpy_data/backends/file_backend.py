"""FileBackend: a backend of models whose files say their inputs and outputs by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tpy.backend import BackendCapabilities, LoadedModel, ModelContext
from tpy.config import ModelConfig
from tpy_data.backends.completion import complete, is_complete
from tpy_data.backends.signature import Signature


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
