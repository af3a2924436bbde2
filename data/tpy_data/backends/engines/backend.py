"""ServedEngines: a backend of engines as the server's other backends are."""

from __future__ import annotations

from typing import Final

import msgspec

from tpy.backend import BackendCapabilities, InstancePlacement, LoadedModel, ModelContext, ModelInstance
from tpy.backend.engine import EmbeddingBackend, EngineBackend, EngineModel, ImageBackend
from tpy.config import ModelConfig
from tpy.errors import InvalidArgument
from tpy_data.backends.engines.instance import EngineInstance
from tpy_data.backends.engines.metrics import EngineMetrics
from tpy_data.generation.core import asking, embedding

STEP_LIMIT: Final = "step_timeout_seconds"
"""A model's parameter: an engine that takes longer for a step is given up."""

STEP_LIMIT_S: Final = 300.0
"""Its default. A step with the longest prompt that an engine takes is minutes on a slow machine."""


class ServedEngines:
    """A `Backend`."""

    def __init__(self, backend: EngineBackend) -> None:
        self._backend = backend

    @property
    def capabilities(self) -> BackendCapabilities:
        """The engine's."""
        return self._backend.capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Inputs, outputs and the transaction policy, then what the engine adds. Raises TpyError."""
        if self._gives_embeddings(context):
            config = embedding.with_inputs_and_outputs(context.config)
        else:
            config = asking.with_inputs_and_outputs(context.config, images=self._takes_images(context))
        completed: ModelConfig = self._backend.auto_complete(context_with(context, config))
        return completed

    def load(self, context: ModelContext) -> LoadedModel:
        """Raises TpyError."""
        config = context.config
        if not config.decoupled:
            raise InvalidArgument(
                f"model '{config.name}' must be decoupled: its engine answers in pieces; "
                "model_transaction_policy { decoupled: true }"
            )
        embeds, takes_images = self._gives_embeddings(context), self._takes_images(context)
        model = self._backend.load(context)
        return ServedEngineModel(context, model, step_limit_s(config), embeds=embeds, takes_images=takes_images)

    def close(self) -> None:
        """As `Backend.close`."""
        self._backend.close()

    def _gives_embeddings(self, context: ModelContext) -> bool:
        return isinstance(self._backend, EmbeddingBackend) and self._backend.gives_embeddings(context)

    def _takes_images(self, context: ModelContext) -> bool:
        return isinstance(self._backend, ImageBackend) and self._backend.takes_images(context)


class ServedEngineModel:
    """A `LoadedModel`."""

    def __init__(self, context: ModelContext, model: EngineModel, limit_s: float, *, embeds: bool, takes_images: bool) -> None:
        self._context = context
        self._model = model
        self._limit_s = limit_s
        self._embeds = embeds
        self._takes_images = takes_images

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """An engine in a thread. Raises TpyError."""
        context = self._context
        metrics = EngineMetrics(context.metrics, model=context.name, version=context.version, instance=placement.name)
        try:
            return EngineInstance(
                lambda: self._model.create_engine(placement),
                name=placement.name,
                metrics=metrics,
                step_limit_s=self._limit_s,
                log=context.log,
                embeds=self._embeds,
                takes_images=self._takes_images,
            )
        except BaseException:
            metrics.close()
            raise

    def unload(self) -> None:
        """As `LoadedModel.unload`."""
        self._model.unload()


def context_with(context: ModelContext, config: ModelConfig) -> ModelContext:
    """The context with another configuration."""
    return msgspec.structs.replace(context, config=config)


def step_limit_s(config: ModelConfig) -> float:
    """The model's limit for a step. Raises InvalidArgument for one that is not a positive number."""
    text = config.parameter(STEP_LIMIT)
    if not text:
        return STEP_LIMIT_S
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = 0.0
    if not 0 < limit_s <= 86_400:
        raise InvalidArgument(f"parameter '{STEP_LIMIT}' of model '{config.name}' must be a number of seconds, got '{text}'")
    return limit_s
