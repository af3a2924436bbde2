"""Profiles, shape tensors, graphs, outputs of unknown size, places of tensors: on the recorded TensorRT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.backends.tensorrt.fake import plan, tensor
from tests.backends.tensorrt.models import DOUBLE, FP32, Machine, config_of, double_config, placement, rows
from tpy.backend import DeviceInstance, InstanceFailure, InstancePlacement, SequenceState
from tpy.config import ModelConfig
from tpy.config.model_config import (
    BatchInput,
    BatchInputKind,
    CudaGraphLowerBound,
    CudaGraphShape,
    CudaGraphSpec,
    InstanceGroup,
    InstanceKind,
    ModelParameter,
    ModelPriority,
    Optimization,
    OptimizationCuda,
    SecondaryDevice,
    SecondaryDeviceKind,
    SequenceBatching,
    StrategyOldest,
    TensorReshape,
)
from tpy.config.model_config import SequenceState as StateConfig
from tpy.devices import DeviceArray, DeviceMemory
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable
from tpy.messages import DataType, Place, Residency, Tensor
from tpy.messages.places import MemoryType
from tpy.testing import FakeDevice, HostedInstance, HostedModel, SampleRequest, request_of


@contextmanager
def served(machine: Machine, folder: Path, config: ModelConfig, content: bytes) -> Iterator[HostedInstance]:
    backend = machine.backend()
    with HostedModel(backend, machine.context(folder, config, content)) as model:
        yield model.instance(placement(config))
    backend.close()


def graphs(*specs: CudaGraphSpec) -> Optimization:
    return Optimization(cuda=OptimizationCuda(graphs=True, graph_spec=specs))


def test_each_batch_takes_the_profile_that_is_nearest(tmp_path: Path) -> None:
    machine, config = Machine(), double_config(profile=("1", "0"), max_batch_size=16)
    with served(machine, tmp_path, config, DOUBLE) as instance:
        machine.library.executed()
        for count in (1, 4, 5, 16):
            result = instance.execute(request_of(config, {"x": rows(*range(count))}))[0]
            assert result.outputs[0].array.tolist() == (rows(*range(count)) * 2).tolist()
    assert machine.library.executed() == [
        (0, {"x": (1, 4)}),  # 1 from 2 and 7 from 8
        (0, {"x": (4, 4)}),
        (1, {"x": (5, 4)}),
        (1, {"x": (16, 4)}),
    ]


def test_a_context_for_each_profile_of_the_group_and_none_for_the_others(tmp_path: Path) -> None:
    machine = Machine()
    config = double_config(profile=("1",), max_batch_size=16)
    config = msgspec.structs.replace(
        config, parameters={"execution_context_allocation_strategy": ModelParameter(string_value="ON_PROFILE_CHANGE")}
    )
    with served(machine, tmp_path, config, DOUBLE):
        pass
    assert [call for call in machine.library.calls if call[0] in ("context", "profile", "deserialize")] == [
        ("deserialize", False, -1),
        ("context", "ON_PROFILE_CHANGE"),
        ("profile", 1),
    ]


def test_a_batch_that_no_profile_takes_is_refused_with_the_limits_of_each(tmp_path: Path) -> None:
    machine, config = Machine(), double_config(profile=("0", "1"), max_batch_size=32)
    with served(machine, tmp_path, config, DOUBLE) as instance:
        with pytest.raises(InvalidArgument) as refusal:
            instance.execute(request_of(config, {"x": rows(*range(17))}))
        assert refusal.value.message == (
            "request specifies invalid shape [17,4] for input 'x' for m. Error details: profile 0: model expected the shape of "
            "dimension 0 to be between 1 and 4 but received 17; profile 1: model expected the shape of dimension 0 to be between "
            "1 and 16 but received 17"
        )
        assert instance.execute(request_of(config, {"x": rows(1)}))[0].outputs[0].array.tolist() == rows(2).tolist()


def test_a_batch_is_one_copy_in_and_one_wait(tmp_path: Path) -> None:
    machine, config = Machine(), double_config()
    with served(machine, tmp_path, config, DOUBLE) as instance:
        requests = [request_of(config, {"x": rows(number)}) for number in (1, 2, 3)]
        instance.execute(*requests)
        before = machine.device.counts.copy()
        results = instance.execute(*requests)
    counts = machine.device.counts - before
    assert [result.outputs[0].array.tolist() for result in results] == [rows(2).tolist(), rows(4).tolist(), rows(6).tolist()]
    assert {key: counts[key] for key in ("in", "out", "within", "synchronize", "in bytes")} == {
        "in": 1,
        "out": 1,
        "within": 0,
        "synchronize": 1,
        "in bytes": 48,
    }
    assert machine.device.counts["allocations"] == before["allocations"]


def test_only_outputs_that_somebody_wants_are_copied(tmp_path: Path) -> None:
    kinds = dict.fromkeys(("a", "b", "sum", "difference"), (FP32, (4,)))
    content = plan(
        "two",
        *(tensor(name, "INPUT", (-1, 4)) for name in "ab"),
        *(tensor(name, "OUTPUT", (-1, 4)) for name in ("sum", "difference")),
        profiles=[{key: [(1, 4), (2, 4), (4, 4)] for key in "ab"}],
    )
    machine = Machine()
    config = config_of(
        inputs={name: kinds[name] for name in "ab"},
        outputs={name: kinds[name] for name in ("sum", "difference")},
        max_batch_size=4,
    )
    with served(machine, tmp_path, config, content) as instance:
        before = machine.device.counts["out"]
        wanted = [("sum",), ("sum",)]
        results = instance.execute(
            *(request_of(config, {"a": rows(1), "b": rows(2)}, requested_outputs=names) for names in wanted)
        )
        assert [[each.name for each in result.outputs] for result in results] == [["sum"], ["sum"]]
        assert machine.device.counts["out"] - before == 1


def test_a_tensor_on_the_device_stays_there(tmp_path: Path) -> None:
    machine, config = Machine(), double_config()
    with served(machine, tmp_path, config, DOUBLE) as instance:
        there = machine.devices.to_device(rows(1, 2), 0)
        requests = [
            SampleRequest(
                inputs={"x": Tensor("x", FP32, array)}, batch_size=array.shape[0], residency=Residency(True, frozenset({"y"}))
            )
            for array in (there.as_array(), rows(3), machine.devices.to_device(rows(4), 0).as_array())
        ]
        before = machine.device.counts.copy()
        results = instance.execute(*requests)
        outputs: list[Any] = [result.outputs[0].array for result in results]
        assert all(isinstance(output, DeviceArray) for output in outputs)
        counts = machine.device.counts - before
        assert (counts["in"], counts["out"], counts["within"]) == (1, 0, 3)
        instance.execute(*requests[1:])
        assert [output.to_host().tolist() for output in outputs] == [rows(2, 4).tolist(), rows(6).tolist(), rows(8).tolist()]
        mixed = [requests[0], request_of(config, {"x": rows(3)})]
        assert [type(result.outputs[0].array) for result in instance.execute(*mixed)] == [np.ndarray] * 2


def test_tensors_are_taken_on_the_device_where_nothing_has_to_look_at_them(tmp_path: Path) -> None:
    machine, config = Machine(), double_config()
    model = machine.backend().load(machine.context(tmp_path, config, DOUBLE))
    instance = model.create_instance(placement(config))
    assert isinstance(instance, DeviceInstance)
    assert instance.takes == {Place(MemoryType.GPU, 0)}
    instance.close()
    model.unload()


class TestGraphs:
    def run(self, folder: Path, config: ModelConfig, *counts: int, content: bytes = DOUBLE) -> tuple[Machine, list[int]]:
        """Executes batches of so many rows. Returns which of them were launches of a graph."""
        machine = Machine()
        launched = []
        with served(machine, folder, config, content) as instance:
            for count in counts:
                before = machine.device.counts["launches"]
                result = instance.execute(request_of(config, {"x": rows(*range(count))}))[0]
                assert result.outputs[0].array.tolist() == (rows(*range(count)) * 2).tolist()
                launched.append(machine.device.counts["launches"] - before)
        return machine, launched

    def test_default_sizes(self, tmp_path: Path) -> None:
        config = double_config(profile=("1",), max_batch_size=16, optimization=graphs())
        machine, launched = self.run(tmp_path, config, *range(1, 17))
        assert [size for size, launch in enumerate(launched, 1) if launch] == [1, 2, 3, 4, 6, 8, 12, 16]
        assert machine.device.counts["graphs"] == 8
        assert not machine.warnings()

    def test_no_graphs_unless_they_are_asked_for(self, tmp_path: Path) -> None:
        machine, launched = self.run(tmp_path, double_config(), 1, 2)
        assert (machine.device.counts["graphs"], launched) == (0, [0, 0])

    def test_each_profile_captures_what_it_takes(self, tmp_path: Path) -> None:
        config = double_config(
            profile=("0", "1"),
            max_batch_size=16,
            optimization=graphs(CudaGraphSpec(batch_size=2), CudaGraphSpec(batch_size=8)),
        )
        machine, launched = self.run(tmp_path, config, 2, 8, 3)
        assert machine.device.counts["graphs"] == 3
        assert launched == [1, 1, 0]

    def test_a_lower_bound_lets_smaller_batches_take_a_graph(self, tmp_path: Path) -> None:
        spec = CudaGraphSpec(
            batch_size=4,
            input={"x": CudaGraphShape(dim=(4,))},
            graph_lower_bound=CudaGraphLowerBound(batch_size=2, input={"x": CudaGraphShape(dim=(4,))}),
        )
        _, launched = self.run(tmp_path, double_config(optimization=graphs(spec)), 1, 2, 3, 4)
        assert launched == [0, 1, 1, 1]

    def test_what_cannot_be_captured_runs_without(self, tmp_path: Path) -> None:
        content = DOUBLE.replace(b"{", b'{"refuses_capture": true, ', 1)
        machine, launched = self.run(
            tmp_path, double_config(optimization=graphs(CudaGraphSpec(batch_size=1))), 1, content=content
        )
        assert launched == [0]
        assert machine.warnings() == [
            (
                "unable to record CUDA graph for m: unable to enqueue for inference m: operation not permitted when stream is "
                "capturing"
            )
        ]

    def test_a_graph_of_an_unknown_input_is_refused(self, tmp_path: Path) -> None:
        spec = CudaGraphSpec(batch_size=1, input={"z": CudaGraphShape(dim=(4,))})
        with pytest.raises(InvalidArgument, match="unknown input 'z'"):
            self.run(tmp_path, double_config(optimization=graphs(spec)))


def test_an_output_of_unknown_size_is_allocated_when_it_is_known(tmp_path: Path) -> None:
    content = plan(
        "nonzero",
        tensor("x", "INPUT", (-1,), "INT32"),
        tensor("y", "OUTPUT", (-1,), "INT32"),
        profiles=[{"x": [(1,), (4,), (1000,)]}],
    )
    config = config_of(inputs={"x": (DataType.INT32, (-1,))}, outputs={"y": (DataType.INT32, (-1,))}, optimization=graphs())
    machine = Machine(memory_bytes=(1 << 20) + (1 << 15))
    with served(machine, tmp_path, config, content) as instance:
        assert machine.warnings() == ["Detected output of data-dependent shape, CUDA graph is not captured for m"]
        kept = []
        for array in ([0, 5, 0, 7], [0], list(range(100)), [3]):
            result = instance.execute(request_of(config, {"x": np.asarray(array, np.int32)}))[0]
            kept.append((array, result))
        for array, result in kept:
            assert result.outputs[0].array.tolist() == [each for each in array if each]
        held = _fill(machine.device)
        with pytest.raises(Internal, match="GPU 0: out of memory"):
            instance.execute(request_of(config, {"x": np.arange(1000, dtype=np.int32)}))
        held.clear()
        result = instance.execute(request_of(config, {"x": np.arange(1000, dtype=np.int32)}))[0]
        assert result.outputs[0].array.tolist() == list(range(1, 1000))


def _fill(device: FakeDevice) -> list[DeviceMemory]:
    """Takes all memory that the device has left."""
    held = []
    for size in (1 << 10, 1 << 5, 1):
        with suppress(Unavailable):
            while True:
                held.append(device.allocate(size))
    return held


class TestShapeTensors:
    """`fill` makes an output of the shape that an input says, and tells that shape."""

    @staticmethod
    def model(*, batching: bool, kind: str = "INT32") -> tuple[ModelConfig, bytes]:
        count = 2 + batching
        content = plan(
            "fill",
            tensor("x", "INPUT", (-1, 1) if batching else (1,)),
            tensor("shape", "INPUT", (count,), kind, is_shape=True),
            tensor("y", "OUTPUT", (-1,) * count),
            tensor("shape_out", "OUTPUT", (count,), "INT64", is_shape=True),
            profiles=[{"x": [(1, 1), (2, 1), (4, 1)]} if batching else {}] * 2,
            values=[{"shape": [(1,) * count, (2,) * count, (4,) * count]}, {"shape": [(1,) * count, (8,) * count, (9,) * count]}],
        )
        config = config_of(
            inputs={"x": (FP32, (1,)), "shape": (DataType[kind], (2,))},
            outputs={"y": (FP32, (-1, -1)), "shape_out": (DataType.INT64, (2,))},
            max_batch_size=4 if batching else 0,
            profile=("0", "1"),
            optimization=graphs(),
        )
        marked = {"shape", "shape_out"}
        return msgspec.structs.replace(
            config,
            input=tuple(msgspec.structs.replace(each, is_shape_tensor=each.name in marked) for each in config.input),
            output=tuple(msgspec.structs.replace(each, is_shape_tensor=each.name in marked) for each in config.output),
        ), content

    @pytest.mark.parametrize("kind", ["INT32", "INT64"])
    def test_values_decide_about_shape_and_profile(self, tmp_path: Path, kind: str) -> None:
        machine = Machine()
        config, content = self.model(batching=False, kind=kind)
        dtype = DataType[kind].numpy
        with served(machine, tmp_path, config, content) as instance:
            assert machine.warnings() == ["Detected shape tensor, CUDA graph is not captured for m"] * 2
            machine.library.executed()
            for values, profile in (((2, 3), 0), ((9, 1), 1), ((1, 1), 0)):
                request = request_of(config, {"x": np.array([7], np.float32), "shape": np.array(values, dtype)})
                outputs = {each.name: each.array for each in instance.execute(request)[0].outputs}
                assert outputs["y"].tolist() == np.full(values, 7).tolist()
                assert outputs["shape_out"].tolist() == list(values)
                assert [used for used, _ in machine.library.executed()] == [profile]
            with pytest.raises(
                InvalidArgument, match=r"invalid values \[10,1\] for input 'shape'.*the shape value 0 to be between 1 and 4"
            ):
                instance.execute(request_of(config, {"x": np.array([7], np.float32), "shape": np.array((10, 1), dtype)}))

    def test_with_batching_the_batch_size_stands_in_front(self, tmp_path: Path) -> None:
        machine = Machine()
        config, content = self.model(batching=True)
        with served(machine, tmp_path, config, content) as instance:
            requests = [
                request_of(config, {"x": np.full((count, 1), 7, np.float32), "shape": np.array((2, 3), np.int32)})
                for count in (1, 2)
            ]
            results = instance.execute(*requests)
        for count, result in zip((1, 2), results, strict=True):
            outputs = {each.name: each.array for each in result.outputs}
            assert outputs["y"].shape == (count, 2, 3)
            assert outputs["shape_out"].tolist() == [[2, 3]] * count


def test_ragged_inputs_are_one_flat_tensor_and_the_server_makes_their_lengths(tmp_path: Path) -> None:
    content = plan(
        "sums",
        tensor("x", "INPUT", (-1,)),
        tensor("counts", "INPUT", (-1,)),
        tensor("y", "OUTPUT", (-1,)),
        profiles=[{"x": [(1,), (8,), (64,)], "counts": [(1,), (2,), (4,)]}],
    )
    config = config_of(inputs={"x": (FP32, (-1,))}, outputs={"y": (FP32, (1,))}, max_batch_size=4)
    config = msgspec.structs.replace(
        config,
        input=(msgspec.structs.replace(config.input[0], allow_ragged_batch=True),),
        output=(msgspec.structs.replace(config.output[0], reshape=TensorReshape(shape=())),),
        batch_input=(
            BatchInput(kind=BatchInputKind.BATCH_ELEMENT_COUNT, target_name=("counts",), data_type=FP32, source_input=("x",)),
        ),
    )
    machine = Machine()
    with served(machine, tmp_path, config, content) as instance:
        arrays = [np.arange(count, dtype=np.float32)[None] for count in (3, 5, 1)]
        results = instance.execute(*(request_of(config, {"x": array}) for array in arrays))
    assert [result.outputs[0].array.tolist() for result in results] == [[3], [10], [0]]


def test_states_are_kept_between_the_requests_of_a_sequence(tmp_path: Path) -> None:
    content = plan(
        "accumulate",
        *(tensor(name, "INPUT", (-1, 4)) for name in ("x", "state_in")),
        *(tensor(name, "OUTPUT", (-1, 4)) for name in ("y", "state_out")),
        profiles=[{key: [(1, 4), (2, 4), (4, 4)] for key in ("x", "state_in")}],
    )
    config = double_config(
        sequence_batching=SequenceBatching(
            oldest=StrategyOldest(max_candidate_sequences=2),
            state=(StateConfig(input_name="state_in", output_name="state_out", data_type=FP32, dims=(4,)),),
        )
    )
    machine = Machine()
    with served(machine, tmp_path, config, content) as instance:
        states = [SequenceState({"state_in": rows(0)}) for _ in range(2)]
        for step in (1, 2, 3):
            requests = [
                dataclasses.replace(request_of(config, {"x": rows(step * 10**index)}), state=state)
                for index, state in enumerate(states)
            ]
            results = instance.execute(*requests)
    assert [result.outputs[0].array.tolist() for result in results] == [rows(6).tolist(), rows(60).tolist()]


def test_priorities_become_those_of_the_stream(tmp_path: Path) -> None:
    for priority, number in (
        (ModelPriority.PRIORITY_MAX, 1),
        (ModelPriority.PRIORITY_MIN, -1),
        (ModelPriority.PRIORITY_DEFAULT, 0),
    ):
        machine = Machine()
        with served(machine, tmp_path, double_config(optimization=Optimization(priority=priority)), DOUBLE):
            pass
        assert machine.device.counts[f"streams of priority {number}"] == 1


def test_instances_of_a_device_share_its_engine(tmp_path: Path) -> None:
    machine, config = Machine(), double_config()
    backend = machine.backend()
    with HostedModel(backend, machine.context(tmp_path, config, DOUBLE)) as model:
        for number in range(3):
            model.instance(placement(config, number))
    kinds = [call[0] for call in machine.library.calls]
    assert (kinds.count("deserialize"), kinds.count("context")) == (1, 3)


def test_an_instance_on_a_deep_learning_accelerator_has_an_engine_of_its_own(tmp_path: Path) -> None:
    machine, config = Machine(), double_config()

    def on_core(number: int) -> InstancePlacement:
        device = SecondaryDevice(kind=SecondaryDeviceKind.KIND_NVDLA, device_id=number)
        return msgspec.structs.replace(placement(config), secondary_devices=(device,))

    with HostedModel(machine.backend(), machine.context(tmp_path, config, DOUBLE)) as model:
        model.instance(on_core(0))
        model.instance(placement(config))
        with pytest.raises(InvalidArgument, match="DLA Core ID: 1, available number of DLA cores: 1"):
            model.instance(on_core(1))
    assert [call for call in machine.library.calls if call[0] == "deserialize"] == [
        ("deserialize", False, -1),
        ("deserialize", False, 0),
    ]


def test_memory_is_given_back(tmp_path: Path) -> None:
    machine, config = Machine(), double_config(optimization=graphs())
    with served(machine, tmp_path, config, DOUBLE) as instance:
        instance.execute(request_of(config, {"x": rows(1)}))
        assert machine.device.counts["open"] > 1
    assert machine.device.counts["open"] == 1  # the pool of the server


@pytest.mark.parametrize(
    ("change", "memory_bytes", "text"),
    [
        (b'{"memory": true, ', 1 << 26, "unable to create TensorRT context: Error Code 2: OutOfMemory"),
        (b"{", (1 << 20) + 300, "GPU 0: out of memory"),
    ],
)
def test_an_engine_without_room_for_its_work_is_refused(tmp_path: Path, change: bytes, memory_bytes: int, text: str) -> None:
    machine, config = Machine(memory_bytes=memory_bytes), double_config(profile=("1",), max_batch_size=16)
    backend = machine.backend()
    with (
        HostedModel(backend, machine.context(tmp_path, config, DOUBLE.replace(b"{", change, 1))) as model,
        pytest.raises(TpyError, match=text) as refusal,
    ):
        model.instance(placement(config))
    assert isinstance(refusal.value, Unavailable if change == b"{" else Internal)


def test_a_run_that_fails_fails_its_batch_and_one_whose_device_fails_ends_the_instance(tmp_path: Path) -> None:
    machine, config = Machine(), double_config()
    with served(machine, tmp_path, config, DOUBLE) as instance:
        machine.library.fails = True
        with pytest.raises(Internal, match="unable to enqueue for inference m: Error Code 1: Cuda Runtime"):
            instance.execute(request_of(config, {"x": rows(1)}))
        machine.library.fails = False
        assert instance.execute(request_of(config, {"x": rows(1)}))[0].error is None
        machine.library.fails = True
        machine.device.lost = True
        with pytest.raises(InstanceFailure, match="GPU 0 failed: the device was lost"):
            instance.execute(request_of(config, {"x": rows(1)}))
        machine.device.lost = False


def test_an_instance_elsewhere_than_on_a_gpu_is_refused(tmp_path: Path) -> None:
    machine, config = Machine(), double_config()
    config = msgspec.structs.replace(config, instance_group=(InstanceGroup(name="m", kind=InstanceKind.KIND_CPU, count=1),))
    context = machine.context(tmp_path, config, DOUBLE)
    context = msgspec.structs.replace(context, placements=(InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU),))
    with pytest.raises(InvalidArgument, match="unable to load model 'm', TensorRT backend supports only GPU device"):
        machine.backend().load(context)
