"""The dali backend: completes configurations, loads models."""

from __future__ import annotations

import threading
from pathlib import Path

from tpy.backend import BackendCapabilities, BackendSettings, LoadedModel, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy_backends.dali.completion import complete
from tpy_backends.dali.library import VERSION, gpu_count, load_plugin, release_unused_memory
from tpy_backends.dali.model import DaliModel, says_no_batches
from tpy_backends.dali.settings import backend_config
from tpy_backends.dali.source import DEFAULT_FILENAME, read_pipeline


class DaliBackend:
    """One per server."""

    def __init__(self, settings: BackendSettings) -> None:
        """Raises Internal for a library of operators that cannot be loaded."""
        self._config = backend_config(settings.config)
        for path in self._config.plugin_libraries:
            load_plugin(path)
        self._lock = threading.Lock()
        self._loaded = 0
        self._read: dict[Path, tuple[int, bytes]] = {}
        """Pipelines that were read to complete a configuration, with the generation that will load them."""
        on_gpu = gpu_count() > 0
        self._capabilities = BackendCapabilities(
            name=settings.name,
            default_model_filename=DEFAULT_FILENAME,
            devices=frozenset({InstanceKind.KIND_CPU, *([InstanceKind.KIND_GPU] if on_gpu else [])}),
            decoupled=True,
            ragged=True,
            gpus_unusable="" if on_gpu else f"DALI {VERSION} finds no usable GPU; check nvidia-smi",
            version=VERSION,
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """From the pipeline, also what is missing of listed tensors. Raises TpyError."""
        serialized = read_pipeline(context)
        description = DaliModel(context, serialized).describe()
        with self._lock:
            self._read[context.version_directory] = context.generation, serialized
        return complete(context.config, description, batches=not says_no_batches(context))

    def load(self, context: ModelContext) -> LoadedModel:
        """Makes a pipeline at once, so that a broken model fails here."""
        with self._lock:
            generation, serialized = self._read.pop(context.version_directory, (None, b""))
        if generation != context.generation:
            serialized = read_pipeline(context)
        model = DaliModel(context, serialized, self._unloaded)
        model.prepare()
        with self._lock:
            self._loaded += 1
        return model

    def close(self) -> None:
        pass

    def _unloaded(self) -> None:
        """With the last model its memory goes back to the system, where that was asked for."""
        with self._lock:
            self._loaded -= 1
            last = self._loaded == 0
        if last and self._config.release_after_unload:
            release_unused_memory()
