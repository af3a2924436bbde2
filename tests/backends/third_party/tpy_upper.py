"""A backend of somebody else: answers TEXT in upper case as SHOUT. Knows `tpy.backend` and `tpy.messages` only.

Its distribution is the folder beside this file; whoever has this directory on sys.path has it installed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tpy.backend import (
    Backend,
    BackendCapabilities,
    BackendSettings,
    ExecutionBatch,
    ExecutionResult,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
    gather,
    scatter,
)
from tpy.config import ModelConfig
from tpy.messages import DataType, Tensor


def create(settings: BackendSettings) -> Backend:
    return UpperBackend(settings)


class UpperBackend:
    def __init__(self, settings: BackendSettings) -> None:
        self.settings = settings
        self.closed = False

    @property
    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities(name=self.settings.name, default_model_filename="", version="1.0")

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        return context.config

    def load(self, context: ModelContext) -> LoadedModel:
        return UpperModel(context.config)

    def close(self) -> None:
        self.closed = True


class UpperModel:
    def __init__(self, config: ModelConfig) -> None:
        self._config = config

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        return UpperInstance(batches=self._config.max_batch_size > 0)

    def unload(self) -> None:
        pass


class UpperInstance:
    def __init__(self, *, batches: bool) -> None:
        self._batches = batches

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        text = gather(batch.requests)["TEXT"]
        batch.times.inputs_ready()
        shout = np.empty(text.shape, dtype=object)
        shout.ravel()[:] = [element.decode().upper().encode() for element in text.ravel().tolist()]
        batch.times.outputs_begin()
        return scatter(batch.requests, [Tensor("SHOUT", DataType.BYTES, shout)], batches=self._batches)

    def close(self) -> None:
        pass
