"""Fake engines behind a data plane, in virtual time: the loop of an instance is a task, and each step takes a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import trio

from tpy.backend import (
    Backend,
    BackendCapabilities,
    ExecutionBatch,
    ExecutionResult,
    InstanceFailure,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
    ModelMetrics,
)
from tpy.backend.engine import EngineLimits
from tpy.config import ModelConfig
from tpy.messages import DataType, InferenceRequest, Tensor
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.testing.fake_engine import FakeEngine
from tpy.testing.trio_clock import TrioClock
from tpy_data.backends.engines.loop import StepLoop
from tpy_data.backends.engines.metrics import EngineMetrics
from tpy_data.generation.core.asking import with_inputs_and_outputs

STEP_S = 0.02


class VirtualEngines:
    """A backend and the registry that has it. With `embeds` its models give embeddings, with `takes_images` they take
    images."""

    capabilities = BackendCapabilities(name="fake", default_model_filename="", decoupled=True, engine=True)
    server = None

    def __init__(
        self, nursery: trio.Nursery, make: Callable[[], FakeEngine], *, embeds: bool = False, takes_images: bool = False
    ) -> None:
        self._embeds = embeds
        self._takes_images = takes_images
        self.instances: list[VirtualInstance] = []
        self.metrics: ModelMetrics = CustomMetrics()
        self._nursery = nursery
        self._make = make

    def folders_of(self, backend: str) -> tuple[Path, ...]:
        return ()

    def for_model(self, config: ModelConfig, folders: Sequence[Path] = ()) -> Backend:
        return self

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        return context.config

    def load(self, context: ModelContext) -> LoadedModel:
        self.metrics = context.metrics
        return self

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        metrics = EngineMetrics(self.metrics, model="m", version=1, instance=placement.name)
        instance = VirtualInstance(self._make(), metrics, embeds=self._embeds, takes_images=self._takes_images)
        self.instances.append(instance)
        self._nursery.start_soon(instance.run)
        return instance

    def unload(self) -> None:
        pass

    def close(self) -> None:
        pass

    def value(self, name: str) -> float:
        """Of a series of all instances together, or the count of a histogram."""
        total = 0.0
        assert isinstance(self.metrics, CustomMetrics)
        for family in self.metrics.families():
            if family.name == name:
                for sample in family.samples:
                    total += sum(sample.histogram.counts) if sample.histogram is not None else sample.value
        return total


class VirtualInstance:
    """A `ModelInstance` and `LimitedInstance`."""

    def __init__(self, engine: FakeEngine, metrics: EngineMetrics, *, embeds: bool, takes_images: bool) -> None:
        self.engine = engine
        self.failure: InstanceFailure | None = None
        self.running_max = 0
        self._clock = TrioClock(trio.lowlevel.current_clock())
        self._loop = StepLoop(engine, metrics, self._clock.now_ns, embeds=embeds, takes_images=takes_images)
        self._wake = trio.Event()
        self._is_closed = False

    @property
    def engine_limits(self) -> EngineLimits:
        return self.engine.limits()

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        if self.failure is not None:
            raise self.failure
        self._loop.give(batch.requests)
        self._wake.set()
        return ()

    def close(self) -> None:
        self._is_closed = True
        self._wake.set()

    async def run(self) -> None:
        """A task of the test's nursery."""
        while not self._is_closed:
            if self._loop.is_idle:
                await self._wake.wait()
                self._wake = trio.Event()
                continue
            self._loop.turn()
            self.running_max = max(self.running_max, self.engine.load().running)
            await trio.sleep(STEP_S)


def engine_config(**changes: Any) -> ModelConfig:
    """The model "m"."""
    return with_inputs_and_outputs(ModelConfig(name="m", backend="fake", **changes))


def text(name: str, value: str) -> Tensor:
    array = np.empty(1, object)
    array[0] = value.encode()
    return Tensor(name, DataType.BYTES, array)


def flag(name: str) -> Tensor:
    return Tensor(name, DataType.BOOL, np.array([True]))


def asking(prompt: str, sampling: str = "{}", *, stream: bool = True, **fields: Any) -> InferenceRequest:
    """A request to generate."""
    inputs = [text("text_input", prompt), text("sampling_parameters", sampling), flag("exclude_input_in_output")]
    if stream:
        inputs.append(flag("stream"))
    return InferenceRequest(model_name="m", inputs=tuple(inputs), **fields)
