"""The identity backend, its loaded models and their instances."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np

from tpy.backend import (
    Backend,
    BackendCapabilities,
    BackendSettings,
    ExecutionBatch,
    ExecutionRequest,
    ExecutionResult,
    InstanceFailure,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
)
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal
from tpy.messages import DataType, Tensor
from tpy.units import NS_PER_S
from tpy_data.backends.identity.behaviour import Behaviour, behaviour_of
from tpy_data.backends.identity.pairs import Pair, pairs_of


def create(settings: BackendSettings) -> Backend:
    """The entry point. The backend has no settings of its own."""
    return IdentityBackend(settings.name)


class IdentityBackend:
    """See the package. Needs no model file; completes nothing."""

    def __init__(self, name: str) -> None:
        self._capabilities = BackendCapabilities(
            name=name,
            default_model_filename="",
            devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}),
            ragged=True,
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        return context.config

    def load(self, context: ModelContext) -> LoadedModel:
        pairs = pairs_of(context.config)
        behaviour = behaviour_of(context.config)
        time.sleep(behaviour.creation_delay_sec)
        if behaviour.fail_load:
            raise Internal(behaviour.fail_load)
        return IdentityModel(pairs, behaviour, batches=context.config.max_batch_size > 0)

    def close(self) -> None:
        pass


class IdentityModel:
    """A loaded version: its instances share nothing but its settings."""

    def __init__(self, pairs: tuple[Pair, ...], behaviour: Behaviour, *, batches: bool) -> None:
        self._pairs = pairs
        self._behaviour = behaviour
        self._batches = batches
        self._numbers = itertools.count()  # next() is atomic: instances are created in threads of their own

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        if self._behaviour.fail_create_instance:
            raise Internal(self._behaviour.fail_create_instance)
        return IdentityInstance(self._pairs, self._behaviour, number=next(self._numbers), batches=self._batches)

    def unload(self) -> None:
        pass


class IdentityInstance:
    """Answers with the very arrays that came in (read-only views), each under its output's name."""

    def __init__(self, pairs: tuple[Pair, ...], behaviour: Behaviour, *, number: int, batches: bool) -> None:
        self._pairs = pairs
        self._behaviour = behaviour
        self._fails = behaviour.fails
        self._delay_s = behaviour.delay_ns(number) / NS_PER_S
        self._batches = batches

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        if self._delay_s:
            time.sleep(self._delay_s)
        if self._fails:
            return self._execute_with_failures(batch)
        return [self._answer(request) for request in batch.requests]

    def close(self) -> None:
        pass

    def _answer(self, request: ExecutionRequest) -> ExecutionResult:
        inputs = request.inputs
        outputs = []
        for pair in self._pairs:
            tensor = inputs.get(pair.input)
            array = _zeros(pair, request.batch_size if self._batches else None) if tensor is None else tensor.array
            outputs.append(Tensor(pair.output, pair.datatype, array))
        return ExecutionResult(outputs)

    def _execute_with_failures(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        behaviour = self._behaviour
        chosen = [behaviour.chooses(request.id) for request in batch.requests]
        if any(chosen) and behaviour.fail_instance:
            raise InstanceFailure(behaviour.fail_instance)
        if any(chosen) and behaviour.fail_execute:
            raise Internal(behaviour.fail_execute)
        return [
            ExecutionResult(error=Internal(behaviour.fail_request)) if fails and behaviour.fail_request else self._answer(request)
            for request, fails in zip(batch.requests, chosen, strict=True)
        ]


def _zeros(pair: Pair, batch_size: int | None) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Zeros (empty strings for BYTES) in place of an optional input; `batch_size` None without batching."""
    shape = pair.absent_shape if batch_size is None else (batch_size, *pair.absent_shape)
    if pair.datatype is DataType.BYTES:
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, dtype=pair.datatype.numpy)
