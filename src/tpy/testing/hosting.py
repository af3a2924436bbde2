"""Runs a backend as the server does: loading in one thread, each instance in its own thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from tpy.backend import (
    Backend,
    ExecutionBatch,
    ExecutionResult,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
)
from tpy.testing.requests import SampleRequest, batch_of


class HostedInstance:
    """An instance in its own thread, which exists as long as this object is open. Made by HostedModel.instance. `model_instance`
    is what the backend made, None when it is closed."""

    def __init__(self, model: LoadedModel, placement: InstancePlacement) -> None:
        """Raises what `create_instance` raises."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=placement.name)
        try:
            self.model_instance: ModelInstance | None = self._thread.submit(model.create_instance, placement).result()
        except BaseException:
            self._thread.shutdown()
            raise

    def start(self, batch: ExecutionBatch) -> Future[Sequence[ExecutionResult]]:
        """Begin executing; the future has the results, or what `execute` raised."""
        if self.model_instance is None:
            raise ValueError("the instance was closed")
        return self._thread.submit(self.model_instance.execute, batch)

    def execute(self, *requests: SampleRequest) -> Sequence[ExecutionResult]:
        """Run the requests as one batch. Raises what `execute` raises."""
        return self.start(batch_of(requests)).result()

    def close(self) -> None:
        """Close the instance and end its thread. Idempotent."""
        instance, self.model_instance = self.model_instance, None
        if instance is not None:
            try:
                self._thread.submit(instance.close).result()
            finally:
                self._thread.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class HostedModel:
    """A loaded version and its instances; leaving it closes the instances, then unloads."""

    def __init__(self, backend: Backend, context: ModelContext) -> None:
        """Raises what `load` raises."""
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._instances: list[HostedInstance] = []
        try:
            self.model: LoadedModel | None = self._loader.submit(backend.load, context).result()
        except BaseException:
            self._loader.shutdown()
            raise

    def instance(self, placement: InstancePlacement) -> HostedInstance:
        """Create an instance. Raises what `create_instance` raises."""
        if self.model is None:
            raise ValueError("the model was unloaded")
        instance = HostedInstance(self.model, placement)
        self._instances.append(instance)
        return instance

    def close(self) -> None:
        """Close all instances, unload, end the loader's thread. Idempotent."""
        model, self.model = self.model, None
        if model is None:
            return
        try:
            for instance in self._instances:
                instance.close()
            self._instances.clear()
            self._loader.submit(model.unload).result()
        finally:
            self._loader.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
