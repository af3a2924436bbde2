"""The suite that every backend passes. Needs pytest.

Derive a test class from `BackendConformance` and give it the fixture `subject`:

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def subject(self):
            return BackendUnderTest(create=lambda: create(BackendSettings(name="mine")), config=..., ...)

Each test states one promise of `tpy.backend.contract`. Loading runs in one thread, each instance in its own thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpy.backend import Backend, ExecutionResult, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.devices import NO_DEVICES, Devices
from tpy.errors import TpyError
from tpy.messages import DataType
from tpy.messages.datatypes import from_numpy
from tpy.testing.hosting import HostedInstance, HostedModel
from tpy.testing.requests import SampleRequest, batch_of, request_of
from tpy.testing.resources import NOTHING, left_since, measure

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class BackendUnderTest:
    """A backend with one small model.

    `create` makes the backend. `config` is the model's configuration, complete and normalised. `write_model` fills the version
    directory it is given. `sample(n)` gives the inputs of the n-th request in the model's shapes, each n with other values;
    `expected` gives their outputs by name. With batching, the first dimension of every array is the batch, and samples 0 to 2 fit
    together into max_batch_size.

    `failing` are inputs that make the model raise; with `isolates_failures` the result of that request alone is an error,
    without it `execute` raises. `write_broken_model` fills a version directory with something that cannot be loaded, or
    `broken_config` is a configuration that the model cannot be loaded with. None: not tested. `devices` are the GPUs
    that the backend finds (`tpy.testing.FakeDevice`). Floats are compared
    with `tolerance`, relative and absolute.
    """

    create: Callable[[], Backend]
    config: ModelConfig
    sample: Callable[[int], Arrays]
    expected: Callable[[Arrays], Arrays]
    write_model: Callable[[Path], None] = lambda version_directory: None
    failing: Arrays | None = None
    isolates_failures: bool = False
    write_broken_model: Callable[[Path], None] | None = None
    broken_config: ModelConfig | None = None
    devices: Devices = NO_DEVICES
    tolerance: float = 1e-6


_ROUNDS = 3
"""A pool of native threads may grow with its second use, too; what is left behind is left behind each time."""


class Stage:
    """The backend under test with its model on disk."""

    def __init__(self, subject: BackendUnderTest, backend: Backend, root: Path) -> None:
        self.subject = subject
        self.backend = backend
        self._root = root
        self.context = self._write(subject.config, "good", subject.write_model)

    def broken_context(self) -> ModelContext:
        """A model that cannot be loaded. Skips the test when the subject does not have one."""
        subject = self.subject
        if subject.write_broken_model is None and subject.broken_config is None:
            pytest.skip("the subject names no broken model")
        return self._write(subject.broken_config or subject.config, "broken", subject.write_broken_model or subject.write_model)

    def load(self) -> HostedModel:
        """The model, loaded."""
        return HostedModel(self.backend, self.context)

    def placement(self, number: int = 0, kind: InstanceKind | None = None) -> InstancePlacement:
        """The placement of the n-th instance."""
        groups = self.subject.config.instance_group
        return InstancePlacement(
            name=f"{self.context.name}_{number}",
            kind=kind or self.backend.capabilities.default_kind,
            group=self.context.name,
            profiles=groups[0].profile if groups else (),
        )

    def request(self, number: int, **options: Any) -> SampleRequest:
        """The n-th sample as a request with its number as id."""
        return request_of(self.subject.config, self.subject.sample(number), id=str(number), **options)

    def check(self, inputs: Arrays, result: ExecutionResult) -> None:
        """The result is what the inputs lead to: no error, and every configured output right in name, type, shape and values."""
        assert result.error is None
        wanted = self.subject.expected(inputs)
        given = {tensor.name: tensor for tensor in result.outputs}
        for output in self.subject.config.output:
            assert output.name in given, f"output {output.name} is missing"
            tensor = given[output.name]
            assert tensor.datatype is output.data_type
            assert from_numpy(tensor.array.dtype) is output.data_type
            assert tensor.array.shape == wanted[output.name].shape
            assert_same(tensor.array, wanted[output.name], tensor.datatype, self.subject.tolerance)

    def _write(self, config: ModelConfig, folder: str, fill: Callable[[Path], None]) -> ModelContext:
        model_directory = self._root / folder / config.name
        version_directory = model_directory / "1"
        version_directory.mkdir(parents=True)
        fill(version_directory)
        return ModelContext(
            name=config.name,
            version=1,
            generation=1,
            config=config,
            model_directory=model_directory,
            version_directory=version_directory,
            devices=self.subject.devices,
        )


def assert_same(given: Array, wanted: Array, datatype: DataType, tolerance: float) -> None:
    """Equal; floats within the tolerance."""
    if datatype in {DataType.FP16, DataType.FP32, DataType.FP64, DataType.BF16}:
        np.testing.assert_allclose(given.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance)
    else:
        assert given.tolist() == wanted.tolist()


class BackendConformance:
    """See the module. Not collected itself: its name does not begin with Test."""

    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        """Overridden by the class that tests a backend."""
        pytest.fail("give the fixture `subject`")

    @pytest.fixture
    def stage(self, subject: BackendUnderTest, tmp_path: Path) -> Iterator[Stage]:
        backend = subject.create()
        yield Stage(subject, backend, tmp_path)
        backend.close()

    def test_capabilities_hold_together(self, stage: Stage) -> None:
        capabilities = stage.backend.capabilities
        assert capabilities.name
        assert capabilities.default_kind in capabilities.devices
        assert InstanceKind.KIND_AUTO not in capabilities.devices
        assert capabilities.default_count >= 1
        assert stage.backend.capabilities == capabilities

    def test_every_device_that_needs_no_gpu_works(self, stage: Stage) -> None:
        with stage.load() as model:
            for number, kind in enumerate(sorted(stage.backend.capabilities.devices, key=lambda kind: kind.value)):
                if kind is not InstanceKind.KIND_GPU:
                    instance = model.instance(stage.placement(number, kind))
                    stage.check(stage.subject.sample(0), instance.execute(stage.request(0))[0])

    def test_a_complete_configuration_stays_as_it_is(self, stage: Stage) -> None:
        assert stage.backend.auto_complete(stage.context) == stage.subject.config

    def test_answers_are_right(self, stage: Stage) -> None:
        with stage.load() as model:
            instance = model.instance(stage.placement())
            for number in range(5):
                stage.check(stage.subject.sample(number), instance.execute(stage.request(number))[0])

    def test_a_batch_answers_as_its_requests_do_alone_and_in_their_order(self, stage: Stage) -> None:
        self.require_batching(stage)
        with stage.load() as model:
            instance = model.instance(stage.placement())
            for numbers in ([0, 1, 2], [2, 0, 1], [1, 1]):
                results = instance.execute(*[stage.request(number) for number in numbers])
                assert len(results) == len(numbers)
                for number, result in zip(numbers, results, strict=True):
                    stage.check(stage.subject.sample(number), result)

    def test_a_requested_output_is_there(self, stage: Stage) -> None:
        names = [output.name for output in stage.subject.config.output]
        with stage.load() as model:
            instance = model.instance(stage.placement())
            for wanted in ((names[-1],), (names[0],), tuple(reversed(names))):
                result = instance.execute(stage.request(0, requested_outputs=wanted))[0]
                assert result.error is None
                assert {tensor.name for tensor in result.outputs} >= set(wanted)

    def test_requests_of_one_batch_may_want_different_outputs(self, stage: Stage) -> None:
        self.require_batching(stage)
        names = [output.name for output in stage.subject.config.output]
        with stage.load() as model:
            results = model.instance(stage.placement()).execute(
                stage.request(0, requested_outputs=(names[0],)), stage.request(1, requested_outputs=(names[-1],))
            )
            for result, name in zip(results, (names[0], names[-1]), strict=True):
                assert name in {tensor.name for tensor in result.outputs}

    def test_inputs_are_not_written(self, stage: Stage) -> None:
        inputs = stage.subject.sample(0)
        before = {name: array.copy() for name, array in inputs.items()}
        with stage.load() as model:
            model.instance(stage.placement()).execute(request_of(stage.subject.config, inputs))
        for name, array in inputs.items():
            assert array.tolist() == before[name].tolist()

    def test_inputs_need_neither_be_contiguous_nor_aligned(self, stage: Stage) -> None:
        inputs = stage.subject.sample(1)
        with stage.load() as model:
            instance = model.instance(stage.placement())
            for change in (_strided, _unaligned):
                changed = {name: change(array) for name, array in inputs.items()}
                stage.check(inputs, instance.execute(request_of(stage.subject.config, changed))[0])

    def test_answers_outlive_the_next_execution_and_the_model(self, stage: Stage) -> None:
        with stage.load() as model:
            instance = model.instance(stage.placement())
            first = instance.execute(stage.request(0))[0]
            instance.execute(stage.request(1))
            stage.check(stage.subject.sample(0), first)
        stage.check(stage.subject.sample(0), first)

    def test_phases_are_in_order(self, stage: Stage) -> None:
        batch = batch_of([stage.request(0)])
        with stage.load() as model:
            model.instance(stage.placement()).start(batch).result()
        marks = [mark for mark in (batch.times.input_end_ns, batch.times.output_start_ns) if mark]
        assert marks == sorted(marks)

    def test_instances_work_side_by_side(self, stage: Stage) -> None:
        with stage.load() as model:
            instances = [model.instance(stage.placement(number)) for number in range(2)]
            running = [
                (number, instance.start(batch_of([stage.request(number)]))) for number in range(8) for instance in instances
            ]
            for number, future in running:
                stage.check(stage.subject.sample(number), future.result()[0])

    def test_an_instance_survives_the_others(self, stage: Stage) -> None:
        with stage.load() as model:
            first, second = (model.instance(stage.placement(number)) for number in range(2))
            first.close()
            stage.check(stage.subject.sample(0), second.execute(stage.request(0))[0])
            third = model.instance(stage.placement(2))
            stage.check(stage.subject.sample(1), third.execute(stage.request(1))[0])

    def test_two_copies_of_a_model_serve_at_once(self, stage: Stage) -> None:
        with stage.load() as old:
            old_instance = old.instance(stage.placement())
            with stage.load() as new:
                stage.check(stage.subject.sample(0), new.instance(stage.placement()).execute(stage.request(0))[0])
                stage.check(stage.subject.sample(1), old_instance.execute(stage.request(1))[0])
            stage.check(stage.subject.sample(2), old_instance.execute(stage.request(2))[0])

    def test_what_was_never_used_closes(self, stage: Stage) -> None:
        stage.load().close()
        with stage.load() as model:
            model.instance(stage.placement()).close()

    def test_loading_and_unloading_leave_nothing(self, stage: Stage) -> None:
        self.use_once(stage)  # what is imported, and pools that belong to the process, come with the first use
        remains = []
        for _ in range(_ROUNDS):
            before = measure()
            remains += [reference for _ in range(3) for reference in self.use_once(stage)]
            left = left_since(before)
            if left == NOTHING:
                break
        assert left == NOTHING
        assert [reference() for reference in remains] == [None] * len(remains)

    def test_a_failing_request_is_answered_and_the_instance_lives_on(self, stage: Stage) -> None:
        subject = stage.subject
        if subject.failing is None:
            pytest.skip("the subject names no failing inputs")
        with stage.load() as model:
            instance = model.instance(stage.placement())
            bad = request_of(subject.config, subject.failing, id="bad")
            if subject.isolates_failures:
                self.check_isolation(stage, instance, bad)
            else:
                with pytest.raises(Exception, match=r"\S"):
                    instance.execute(bad)
            stage.check(subject.sample(0), instance.execute(stage.request(0))[0])

    def test_a_broken_model_is_refused_with_a_reason(self, stage: Stage) -> None:
        broken = stage.broken_context()
        self.use_once(stage)
        before = measure()
        with pytest.raises(TpyError, match=r"\S"), HostedModel(stage.backend, broken) as model:
            model.instance(stage.placement())
        assert left_since(before) == NOTHING
        self.use_once(stage)

    @staticmethod
    def require_batching(stage: Stage) -> None:
        """Skip unless the model batches."""
        if stage.subject.config.max_batch_size < 2:
            pytest.skip("the model does not batch")

    @staticmethod
    def check_isolation(stage: Stage, instance: HostedInstance, bad: SampleRequest) -> None:
        """The bad request's result is an error; the good one's, in the same batch if the model batches, is right."""
        together = stage.subject.config.max_batch_size >= bad.batch_size + stage.request(0).batch_size
        results = instance.execute(bad, stage.request(0)) if together else instance.execute(bad)
        assert results[0].error is not None
        assert results[0].error.message
        if together:
            stage.check(stage.subject.sample(0), results[1])

    @staticmethod
    def use_once(stage: Stage) -> list[weakref.ref[object]]:
        """Load, run with two instances, unload; weak references to what the backend gave."""
        with stage.load() as model:
            for number in range(2):
                stage.check(
                    stage.subject.sample(number), model.instance(stage.placement(number)).execute(stage.request(number))[0]
                )
            assert model.model is not None
            return [weakref.ref(model.model)]


def _strided(array: Array) -> Array:
    """The same values at twice the distance."""
    if array.ndim == 0:
        return array
    wide = np.repeat(array, 2, axis=-1)
    return wide[..., ::2]


def _unaligned(array: Array) -> Array:
    """The same values one byte off, as a view into a request's bytes may be."""
    if array.dtype == object or not array.size:
        return array
    shifted = np.frombuffer(b"\0" + array.tobytes(), dtype=np.uint8)[1:]
    return shifted.view(array.dtype).reshape(array.shape)
