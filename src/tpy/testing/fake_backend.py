"""A backend for tests of the engine: copies the n-th input to the n-th output, counts what is open, fails or waits as told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tpy.backend import (
    BackendCapabilities,
    ExecutionBatch,
    ExecutionRequest,
    ExecutionResult,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
)
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.messages import Tensor


class FakeBackend:
    """Its hooks run before the step they are named after, in that step's thread: one that blocks makes the step slow, one that
    raises makes it fail; `on_execute` may also return the results itself. Set them at any time.

    Counters are safe from any thread: `models_open`, `instances_open`, and `executed`, the ids of each executed batch in order.
    """

    def __init__(self, capabilities: BackendCapabilities | None = None) -> None:
        self.capabilities = capabilities or BackendCapabilities(
            name="fake", default_model_filename="", devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL})
        )
        self.on_auto_complete: Callable[[ModelContext], ModelConfig] = lambda context: context.config
        self.on_load: Callable[[ModelContext], None] = lambda context: None
        self.on_create_instance: Callable[[InstancePlacement], None] = lambda placement: None
        self.on_execute: Callable[[ExecutionBatch], Sequence[ExecutionResult] | None] = lambda batch: None
        self.on_unload: Callable[[ModelContext], None] = lambda context: None
        self.models_open = 0
        self.instances_open = 0
        self.executed: list[tuple[str, ...]] = []
        self.closed = False
        self._lock = threading.Lock()

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        return self.on_auto_complete(context)

    def load(self, context: ModelContext) -> LoadedModel:
        self.on_load(context)
        self.count_model(1)
        return _FakeModel(self, context)

    def close(self) -> None:
        self.closed = True

    def count_model(self, change: int) -> None:
        """For its models."""
        with self._lock:
            self.models_open += change

    def count_instance(self, change: int) -> None:
        """For its instances."""
        with self._lock:
            self.instances_open += change

    def record(self, ids: tuple[str, ...]) -> None:
        """For its instances."""
        with self._lock:
            self.executed.append(ids)


class _FakeModel:
    def __init__(self, backend: FakeBackend, context: ModelContext) -> None:
        self._backend = backend
        self._context = context

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        self._backend.on_create_instance(placement)
        self._backend.count_instance(1)
        return _FakeInstance(self._backend, self._context.config)

    def unload(self) -> None:
        self._backend.on_unload(self._context)
        self._backend.count_model(-1)


class _FakeInstance:
    def __init__(self, backend: FakeBackend, config: ModelConfig) -> None:
        self._backend = backend
        self._config = config

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        self._backend.record(tuple(request.id for request in batch.requests))
        results = self._backend.on_execute(batch)
        return [self._copy(request) for request in batch.requests] if results is None else results

    def close(self) -> None:
        self._backend.count_instance(-1)

    def _copy(self, request: ExecutionRequest) -> ExecutionResult:
        pairs = zip(self._config.input, self._config.output, strict=False)
        return ExecutionResult(
            [
                Tensor(output.name, output.data_type, request.inputs[source.name].array)
                for source, output in pairs
                if source.name in request.inputs
            ]
        )
