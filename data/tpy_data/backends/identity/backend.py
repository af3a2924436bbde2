"""The identity backend, its loaded models and their instances."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import msgspec
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
from tpy.config.model_config import InstanceKind, ModelInput, ModelOutput
from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType, Tensor
from tpy.units import NS_PER_MS, NS_PER_S


class _Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Delays have Triton's names: `execute_delay_ms` before copying, times `instance_wise_delay_multiplier` times the
    instance's number (at least once); `creation_delay_sec` in load. Failures are ours, their values are the errors' texts:
    `fail_load`, `fail_create_instance`, `fail_execute` (the batch), `fail_request` (that request alone), `fail_instance` (the
    instance is lost). `fail_only_id` narrows the last three to the request with that id, or a batch that has it.
    """

    execute_delay_ms: int = 0
    instance_wise_delay_multiplier: int = 0
    creation_delay_sec: int = 0
    fail_load: str = ""
    fail_create_instance: str = ""
    fail_execute: str = ""
    fail_request: str = ""
    fail_instance: str = ""
    fail_only_id: str = ""

    @property
    def fails(self) -> bool:
        """True if any execution may fail."""
        return bool(self.fail_execute or self.fail_request or self.fail_instance)

    def chooses(self, request_id: str) -> bool:
        """Returns True if this request may fail."""
        return not self.fail_only_id or self.fail_only_id == request_id

    def delay_ns(self, instance_number: int) -> int:
        """The time that instance `instance_number` (from 0) sleeps in each execution."""
        return self.execute_delay_ms * NS_PER_MS * max(1, self.instance_wise_delay_multiplier * instance_number)


def behaviour_of(config: ModelConfig) -> _Behaviour:
    """Read `parameters`; those with other names are not ours to judge. Raises InvalidArgument for a bad number."""
    return _Behaviour(
        execute_delay_ms=_count(config, "execute_delay_ms"),
        instance_wise_delay_multiplier=_count(config, "instance_wise_delay_multiplier"),
        creation_delay_sec=_count(config, "creation_delay_sec"),
        fail_load=config.parameter("fail_load"),
        fail_create_instance=config.parameter("fail_create_instance"),
        fail_execute=config.parameter("fail_execute"),
        fail_request=config.parameter("fail_request"),
        fail_instance=config.parameter("fail_instance"),
        fail_only_id=config.parameter("fail_only_id"),
    )


def _count(config: ModelConfig, key: str) -> int:
    text = config.parameter(key, "0")
    if not text.isdecimal():
        raise InvalidArgument(f"model '{config.name}', parameter '{key}': expected a whole number >= 0, got '{text}'")
    return int(text)


_INPUT = "INPUT"
_OUTPUT = "OUTPUT"


class _Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Output `output` is input `input`; when that is optional and absent, zeros of `datatype` and `absent_shape` (without the
    batch dimension; -1 taken as 1)."""

    input: str
    output: str
    datatype: DataType
    absent_shape: tuple[int, ...]


def _pairs_of(config: ModelConfig) -> tuple[_Pair, ...]:
    """One pair per output, in the configuration's order. Raises InvalidArgument, with Triton's texts, unless there are as many
    inputs as outputs and every OUTPUT<n> has an INPUT<n> of its datatype and shape."""
    if len(config.input) != len(config.output):
        raise InvalidArgument("model configuration must have equal input/output pairs")
    inputs: dict[str, ModelInput] = {}
    for source in config.input:
        if not source.name.startswith(_INPUT):
            raise InvalidArgument(f"expected input name to follow INPUT<index> pattern, got '{source.name}'")
        inputs[source.name.removeprefix(_INPUT)] = source
    return tuple(_pair(inputs, output) for output in config.output)


def _pair(inputs: dict[str, ModelInput], output: ModelOutput) -> _Pair:
    if not output.name.startswith(_OUTPUT):
        raise InvalidArgument(f"expected output name to follow OUTPUT<index> pattern, got '{output.name}'")
    source = inputs.get(output.name.removeprefix(_OUTPUT))
    if source is None:
        raise InvalidArgument("expected input and output indices to match")
    if source.data_type is not output.data_type:
        raise InvalidArgument(
            f"expected input and output datatype to match, got {source.data_type.config_name} and {output.data_type.config_name}"
        )
    shape = _shape(source)
    if shape != _shape(output):
        raise InvalidArgument(f"expected input and output shape to match, got {_text(shape)} and {_text(_shape(output))}")
    return _Pair(
        input=source.name, output=output.name, datatype=source.data_type, absent_shape=tuple(max(1, size) for size in shape)
    )


def _shape(tensor: ModelInput | ModelOutput) -> tuple[int, ...]:
    return tensor.dims if tensor.reshape is None else tensor.reshape.shape


def _text(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def create(settings: BackendSettings) -> Backend:
    """The entry point. The backend has no settings."""
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
        pairs = _pairs_of(context.config)
        behaviour = behaviour_of(context.config)
        time.sleep(behaviour.creation_delay_sec)
        if behaviour.fail_load:
            raise Internal(behaviour.fail_load)
        return IdentityModel(pairs, behaviour, batches=context.config.max_batch_size > 0)

    def close(self) -> None:
        pass


class IdentityModel:
    """A loaded version: its instances share nothing but its settings."""

    def __init__(self, pairs: tuple[_Pair, ...], behaviour: _Behaviour, *, batches: bool) -> None:
        self._pairs = pairs
        self._behaviour = behaviour
        self._batches = batches
        self._numbers = itertools.count()  # next() is atomic: each instance is created in its own thread

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        if self._behaviour.fail_create_instance:
            raise Internal(self._behaviour.fail_create_instance)
        return IdentityInstance(self._pairs, self._behaviour, number=next(self._numbers), batches=self._batches)

    def unload(self) -> None:
        pass


class IdentityInstance:
    """Answers with the very arrays that came in (read-only views), each under its output's name."""

    def __init__(self, pairs: tuple[_Pair, ...], behaviour: _Behaviour, *, number: int, batches: bool) -> None:
        self._pairs = pairs
        self._behaviour = behaviour
        self._fails = behaviour.fails
        self._delay_s = behaviour.delay_ns(number) / NS_PER_S
        self._batches = batches

    @property
    def any_thread(self) -> bool:
        """As `AnyThreadInstance.any_thread`."""
        return not (self._delay_s or self._fails)

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


def _zeros(pair: _Pair, batch_size: int | None) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Zeros (empty strings for BYTES) in place of an optional input; `batch_size` None without batching."""
    shape = pair.absent_shape if batch_size is None else (batch_size, *pair.absent_shape)
    if pair.datatype is DataType.BYTES:
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, dtype=pair.datatype.numpy)
