"""The conformance suite notices a backend that breaks a promise: each canary fails the test that is meant for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tpy.backend import Backend, ExecutionBatch, ExecutionResult, LoadedModel, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelInput, ModelOutput
from tpy.errors import Internal
from tpy.messages import DataType, Tensor
from tpy.testing import FakeBackend
from tpy.testing.conformance import BackendConformance, BackendUnderTest, Stage

CONFIG = ModelConfig(
    name="copies",
    max_batch_size=8,
    input=(ModelInput(name="INPUT", data_type=DataType.FP32, dims=(3,)),),
    output=(ModelOutput(name="OUTPUT", data_type=DataType.FP32, dims=(3,)),),
)
SUITE = BackendConformance()
Execute = Callable[[ExecutionBatch], Sequence[ExecutionResult] | None]


def _executing(execute: Execute) -> FakeBackend:
    backend = FakeBackend()
    backend.on_execute = execute
    return backend


def _stage(backend: Backend, root: Path) -> Stage:
    def sample(n: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        return {"INPUT": np.full((1 + n % 2, 3), n, np.float32)}

    subject = BackendUnderTest(
        create=lambda: backend,
        config=CONFIG,
        sample=sample,
        expected=lambda inputs: {"OUTPUT": inputs["INPUT"]},
        failing={"INPUT": np.full((1, 3), -1, np.float32)},
        broken_config=msgspec.structs.replace(CONFIG, max_batch_size=-1),
    )
    return Stage(subject, backend, root)


def _result(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ExecutionResult:
    return ExecutionResult([Tensor("OUTPUT", DataType.FP32, array)])


def _reversed(batch: ExecutionBatch) -> list[ExecutionResult]:
    return [_result(request.inputs["INPUT"].array) for request in reversed(batch.requests)]


def _first_only(batch: ExecutionBatch) -> list[ExecutionResult]:
    return [_result(batch.requests[0].inputs["INPUT"].array)]


def _wrong_values(batch: ExecutionBatch) -> list[ExecutionResult]:
    return [_result(request.inputs["INPUT"].array + 1) for request in batch.requests]


def _wrong_type(batch: ExecutionBatch) -> list[ExecutionResult]:
    return [_result(request.inputs["INPUT"].array.astype(np.float64)) for request in batch.requests]


def _without_outputs(batch: ExecutionBatch) -> list[ExecutionResult]:
    return [ExecutionResult() for _ in batch.requests]


def _reusing_its_buffer() -> Execute:
    buffer = np.zeros((2, 3), np.float32)

    def execute(batch: ExecutionBatch) -> list[ExecutionResult]:
        array = batch.requests[0].inputs["INPUT"].array
        buffer[: len(array)] = array
        return [_result(buffer[: len(array)])]

    return execute


def _writing_its_inputs(batch: ExecutionBatch) -> None:
    array = batch.requests[0].inputs["INPUT"].array
    array.base[...] = 7  # past the read-only view, as native code can


def _broken_for_good() -> Execute:
    broken = threading.Event()

    def execute(batch: ExecutionBatch) -> None:
        if broken.is_set() or batch.requests[0].inputs["INPUT"].array[0, 0] == -1:
            broken.set()
            raise Internal("broken")

    return execute


def _backwards_in_time(batch: ExecutionBatch) -> None:
    batch.times.outputs_begin()
    batch.times.input_end_ns = batch.times.output_start_ns + 1


class _Leaking(FakeBackend):
    """Keeps every model and one thread of each."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[LoadedModel] = []
        self.end = threading.Event()

    def load(self, context: ModelContext) -> LoadedModel:
        self.kept.append(super().load(context))
        threading.Thread(target=self.end.wait, name="left behind", daemon=True).start()
        return self.kept[-1]


def _with_one_instance() -> FakeBackend:
    backend = FakeBackend()

    def refuse(_: object) -> None:
        if backend.instances_open:
            raise Internal("only one instance")

    backend.on_create_instance = refuse
    return backend


def _with_wrong_kind() -> FakeBackend:
    backend = FakeBackend()
    backend.capabilities = msgspec.structs.replace(backend.capabilities, default_kind=InstanceKind.KIND_GPU)
    return backend


def _meddling() -> FakeBackend:
    backend = FakeBackend()
    backend.on_auto_complete = lambda context: msgspec.structs.replace(context.config, max_batch_size=1)
    return backend


Check = Callable[[BackendConformance, Stage], None]
CANARIES: list[tuple[Check, Callable[[], FakeBackend]]] = [
    (BackendConformance.test_answers_are_right, lambda: _executing(_wrong_values)),
    (BackendConformance.test_answers_are_right, lambda: _executing(_wrong_type)),
    (BackendConformance.test_a_requested_output_is_there, lambda: _executing(_without_outputs)),
    (BackendConformance.test_a_batch_answers_as_its_requests_do_alone_and_in_their_order, lambda: _executing(_reversed)),
    (BackendConformance.test_a_batch_answers_as_its_requests_do_alone_and_in_their_order, lambda: _executing(_first_only)),
    (BackendConformance.test_answers_outlive_the_next_execution_and_the_model, lambda: _executing(_reusing_its_buffer())),
    (BackendConformance.test_inputs_are_not_written, lambda: _executing(_writing_its_inputs)),
    (BackendConformance.test_phases_are_in_order, lambda: _executing(_backwards_in_time)),
    (BackendConformance.test_a_failing_request_is_answered_and_the_instance_lives_on, lambda: _executing(_broken_for_good())),
    (BackendConformance.test_a_failing_request_is_answered_and_the_instance_lives_on, FakeBackend),
    (BackendConformance.test_a_broken_model_is_refused_with_a_reason, FakeBackend),
    (BackendConformance.test_instances_work_side_by_side, _with_one_instance),
    (BackendConformance.test_capabilities_hold_together, _with_wrong_kind),
    (BackendConformance.test_a_complete_configuration_stays_as_it_is, _meddling),
]


@pytest.mark.parametrize("number", range(len(CANARIES)), ids=lambda n: CANARIES[n][0].__name__.removeprefix("test_"))
def test_the_suite_notices(number: int, tmp_path: Path) -> None:
    check, create = CANARIES[number]
    with pytest.raises((AssertionError, pytest.fail.Exception, Internal)):
        check(SUITE, _stage(create(), tmp_path))


def test_the_suite_notices_what_is_left_behind(tmp_path: Path) -> None:
    backend = _Leaking()
    try:
        with pytest.raises(AssertionError, match="left behind"):
            SUITE.test_loading_and_unloading_leave_nothing(_stage(backend, tmp_path))
    finally:
        backend.end.set()
