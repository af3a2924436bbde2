"""Sequence models for tests of the engine: what a model sees of each batch, and states that it carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from tpy.backend import BackendCapabilities, ExecutionBatch, ExecutionRequest, ExecutionResult
from tpy.config import ModelConfig
from tpy.config.model_config import (
    ControlKind,
    InitialState,
    ModelInput,
    SequenceBatching,
    SequenceControl,
    SequenceControlInput,
    SequenceState,
    StrategyDirect,
    StrategyOldest,
)
from tpy.messages import DataType, InferenceRequest, SequencePosition, Tensor

from .fakes import ScriptedBackend, config, request

CAPABILITIES = BackendCapabilities(
    name="fake", default_model_filename="model.fake", implicit_state=True, decoupled=True, ragged=True
)


def control(name: str, kind: ControlKind, **form: Any) -> SequenceControlInput:
    return SequenceControlInput(name=name, control=(SequenceControl(kind=kind, **form),))


CONTROLS = (
    control("START", ControlKind.CONTROL_SEQUENCE_START, int32_false_true=(0, 1)),
    control("END", ControlKind.CONTROL_SEQUENCE_END, fp32_false_true=(-1.0, 2.5)),
    control("READY", ControlKind.CONTROL_SEQUENCE_READY, bool_false_true=(False, True)),
    control("ID", ControlKind.CONTROL_SEQUENCE_CORRID, data_type=DataType.UINT64),
)

STATE = SequenceState(
    input_name="SUM",
    output_name="SUM_NEXT",
    data_type=DataType.FP32,
    dims=(2,),
    initial_state=(InitialState(name="zeros", data_type=DataType.FP32, dims=(2,), zero_data=True),),
)


def direct(idle_ms: int = 1000, **changes: Any) -> SequenceBatching:
    return SequenceBatching(
        direct=StrategyDirect(), control_input=CONTROLS, max_sequence_idle_microseconds=idle_ms * 1000, **changes
    )


def oldest(candidates: int = 4, idle_ms: int = 1000, **changes: Any) -> SequenceBatching:
    return SequenceBatching(
        oldest=StrategyOldest(max_candidate_sequences=candidates),
        control_input=CONTROLS,
        max_sequence_idle_microseconds=idle_ms * 1000,
        **changes,
    )


def sequence_config(batching: SequenceBatching | None = None, **changes: Any) -> ModelConfig:
    return config(sequence_batching=batching or direct(), **changes)


def of(correlation_id: int | str, value: float = 1, *, start: bool = False, end: bool = False, **fields: Any) -> InferenceRequest:
    """A request of a sequence, IN [1, 2] filled with `value`."""
    position = SequencePosition(correlation_id=correlation_id, start=start, end=end)
    return request(1, 2, value=value, sequence=position, **fields)


class Seen(msgspec.Struct, frozen=True):
    """One request of a batch as the model saw it: its place's controls, its id as the request says it, its input."""

    start: int
    end: float
    ready: bool
    id: int
    correlation_id: int | str
    value: float


def seen(batch: ExecutionBatch) -> list[Seen]:
    """The inputs of the model, place by place."""
    return [_seen(each) for each in batch.requests]


def _seen(each: ExecutionRequest) -> Seen:
    def value(name: str) -> Any:
        array = each.inputs[name].array
        assert array.shape == (1, 1)
        return array.item()

    return Seen(
        start=value("START"),
        end=value("END"),
        ready=value("READY"),
        id=value("ID"),
        correlation_id=0 if each.sequence is None else each.sequence.correlation_id,
        value=each.inputs["IN"].array[0, 0].item(),
    )


def echo(batch: ExecutionBatch) -> list[ExecutionResult]:
    """OUT is IN."""
    return [ExecutionResult([_out(each.inputs["IN"].array)]) for each in batch.requests]


def echo_of(value: float) -> ExecutionResult:
    """A result whose OUT is this one value."""
    return ExecutionResult([_out(np.array([[value]], np.float32))])


def _out(array: np.ndarray[Any, Any]) -> Tensor:
    return Tensor("OUT", DataType.FP32, array)


def summing(batch: ExecutionBatch) -> list[ExecutionResult]:
    """OUT is the sum of the sequence so far; a value of 13 fails."""
    results = []
    for each in batch.requests:
        assert each.state is not None
        before = each.state.values["SUM"]
        assert isinstance(before, np.ndarray)
        array = each.inputs["IN"].array
        if array[0, 0] == 13:
            raise ValueError("unlucky")
        after = before + array
        each.state.values = {"SUM": after}
        results.append(ExecutionResult([_out(after)]))
    return results


def sequence_backend(execute: Callable[[ExecutionBatch], Sequence[ExecutionResult]] = echo) -> ScriptedBackend:
    backend = ScriptedBackend(execute)
    backend.capabilities = CAPABILITIES
    return backend


TEXT_INPUT = ModelInput(name="TEXT", data_type=DataType.BYTES, dims=(-1,))
