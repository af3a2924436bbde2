"""ONNX Runtime with its tensors bound at their addresses. The device is host memory that calls itself a GPU: ONNX Runtime's own
binding and sessions are real, on its CPU provider, and what it is told of CUDA is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper

from tpy.backend import InstanceFailure, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import (
    ExecutionAccelerator,
    ExecutionAccelerators,
    InstanceKind,
    ModelInput,
    ModelOutput,
    ModelParameter,
    Optimization,
)
from tpy.devices import Devices
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy.limits import CUDA_GRAPHS_MAX
from tpy.messages import DataType, MemoryType, Residency, Tensor
from tpy.testing import FakeDevice, SampleRequest, batch_of
from tpy_backends.onnxruntime import device_instance, session
from tpy_backends.onnxruntime.device_instance import DeviceOnnxInstance, OnDevice
from tpy_backends.onnxruntime.instance import OnnxInstance
from tpy_backends.onnxruntime.model import OnnxModel
from tpy_backends.onnxruntime.providers import CPU, CUDA, TENSORRT, captures, providers_for
from tpy_backends.onnxruntime.session import OnnxSession
from tpy_backends.onnxruntime.settings import OnnxRuntimeConfig, SessionSettings

from . import onnx_models

KEEP_ALL = Residency(outputs=None)


class Bound:
    """An instance of a model on a fake device."""

    def __init__(self, tmp_path: Path, content: bytes, config: ModelConfig, **place: Any) -> None:
        self.device = FakeDevice(0, **place)
        self.devices = Devices([self.device], pinned_pool_bytes=1 << 20, cuda_pool_bytes={0: 0})
        path = tmp_path / "model.onnx"
        path.write_bytes(content)
        self.session = OnnxSession(path, SessionSettings(), providers=[(CPU, {})])
        self.session.host_inputs = self.session.host_outputs = frozenset()  # all of a CPU's are
        self.config = config
        self.stream = self.device.stream()
        self.instance = self.made()

    def made(self, *, captures: bool = False) -> DeviceOnnxInstance:
        return DeviceOnnxInstance(self.session, self.config, {}, OnDevice(self.devices, 0, self.stream, captures=captures))

    def run(self, *feeds: dict[str, Any], residency: Residency | None = None) -> list[dict[str, Any]]:
        """Inputs that are a DeviceArray go in where they are. Returns arrays, of either kind, by name."""
        types = {given.name: given.data_type for given in self.config.input}
        requests = [
            SampleRequest(
                inputs={name: Tensor(name, types[name], array) for name, array in feed.items()},
                batch_size=next(iter(feed.values())).shape[0] if self.config.max_batch_size else 1,
                residency=residency,
            )
            for feed in feeds
        ]
        results = self.instance.execute(batch_of(requests))
        assert all(result.error is None for result in results)
        return [{tensor.name: tensor.array for tensor in result.outputs} for result in results]

    def copies(self) -> tuple[int, int, int]:
        counts = self.device.counts
        return counts["in"], counts["out"], counts["within"]


def config_of(datatype: DataType = DataType.FP32, *, max_batch_size: int = 8, dims: tuple[int, ...] = (3,)) -> ModelConfig:
    return ModelConfig(
        name="m",
        max_batch_size=max_batch_size,
        input=(ModelInput(name="INPUT", data_type=datatype, dims=dims),),
        output=(ModelOutput(name="OUTPUT", data_type=datatype, dims=dims),),
    )


def rows(*values: float) -> np.ndarray[Any, Any]:
    return np.array([[value, value + 1, value + 2] for value in values], np.float32)


def test_a_round_trip_is_one_copy_each_way_and_one_wait(tmp_path: Path) -> None:
    bound = Bound(tmp_path, onnx_models.identity(), config_of())
    first, second = bound.run({"INPUT": rows(1)}, {"INPUT": rows(5, 9)})
    assert first["OUTPUT"].tolist() == rows(1).tolist()
    assert second["OUTPUT"].tolist() == rows(5, 9).tolist()
    assert bound.copies() == (1, 1, 0)
    assert (bound.device.counts["synchronize"], bound.device.counts["streams"]) == (1, 1)


def test_a_tensor_that_stays_is_not_copied_and_goes_in_where_it_is(tmp_path: Path) -> None:
    bound = Bound(tmp_path, onnx_models.identity(), config_of())
    (made,) = bound.run({"INPUT": rows(1, 2)}, residency=KEEP_ALL)
    assert made["OUTPUT"].place.memory is MemoryType.GPU
    assert bound.copies() == (1, 0, 0)
    (again,) = bound.run({"INPUT": made["OUTPUT"]}, residency=KEEP_ALL)
    assert bound.copies() == (1, 0, 0)
    assert again["OUTPUT"].to_host().tolist() == rows(1, 2).tolist()


def test_a_batch_of_tensors_here_and_there(tmp_path: Path) -> None:
    bound = Bound(tmp_path, onnx_models.identity(), config_of())
    (made,) = bound.run({"INPUT": rows(1)}, residency=KEEP_ALL)
    first, second = bound.run({"INPUT": made["OUTPUT"]}, {"INPUT": rows(7)}, residency=KEEP_ALL)
    assert (first["OUTPUT"].to_host().tolist(), second["OUTPUT"].to_host().tolist()) == (rows(1).tolist(), rows(7).tolist())


def test_outputs_live_as_long_as_they_are_used(tmp_path: Path) -> None:
    """The memory that ONNX Runtime made stays when later runs are made, and when its instance has gone."""
    bound = Bound(tmp_path, onnx_models.identity(), config_of())
    kept = [bound.run({"INPUT": rows(float(number))}, residency=KEEP_ALL)[0]["OUTPUT"] for number in range(20)]
    bound.instance.close()
    assert [array.to_host().tolist() for array in kept] == [rows(float(number)).tolist() for number in range(20)]


@pytest.mark.parametrize("datatype", [each for each in DataType if each not in (DataType.INVALID, DataType.BYTES)])
def test_every_datatype(tmp_path: Path, datatype: DataType) -> None:
    bound = Bound(tmp_path, onnx_models.identity(datatype), config_of(datatype))
    given = np.array([[0, 1, 1], [1, 0, 1]]).astype(datatype.numpy)
    (found,) = bound.run({"INPUT": given})
    assert found["OUTPUT"].dtype == datatype.numpy
    assert found["OUTPUT"].tolist() == given.tolist()
    assert bound.copies() == (1, 1, 0)


def test_strings_that_a_model_makes_are_on_the_host(tmp_path: Path) -> None:
    node = helper.make_node("Cast", ["INPUT"], ["OUTPUT"], to=TensorProto.STRING)
    tensors = [onnx_models.value("INPUT", DataType.INT64, ("N", 3))], [onnx_models.value("OUTPUT", DataType.BYTES, ("N", 3))]
    config = config_of(DataType.INT64)
    config = msgspec.structs.replace(config, output=(ModelOutput(name="OUTPUT", data_type=DataType.BYTES, dims=(3,)),))
    bound = Bound(tmp_path, onnx_models.model([node], *tensors), config)
    (found,) = bound.run({"INPUT": np.array([[1, 2, 3]])}, residency=KEEP_ALL)
    assert found["OUTPUT"].tolist() == [[b"1", b"2", b"3"]]
    assert bound.copies() == (1, 0, 0)


def test_tensors_that_the_model_reads_and_writes_on_the_host(tmp_path: Path) -> None:
    bound = Bound(tmp_path, onnx_models.identity(), config_of())
    (made,) = bound.run({"INPUT": rows(3)}, residency=KEEP_ALL)
    bound.session.host_inputs = frozenset({"INPUT"})
    bound.session.host_outputs = frozenset({"OUTPUT"})
    before = bound.copies()
    for given in (rows(3), made["OUTPUT"]):
        (found,) = bound.run({"INPUT": given}, residency=KEEP_ALL)
        assert isinstance(found["OUTPUT"], np.ndarray)
        assert found["OUTPUT"].tolist() == rows(3).tolist()
    assert [after - begin for begin, after in zip(before, bound.copies(), strict=True)] == [0, 1, 0]  # of the one on the device


def test_views_and_empty_arrays(tmp_path: Path) -> None:
    bound = Bound(tmp_path, onnx_models.identity(), config_of())
    view = np.arange(12, dtype=np.float32).reshape(4, 3)[::2, ::-1]
    assert bound.run({"INPUT": view})[0]["OUTPUT"].tolist() == view.tolist()
    unaligned = np.frombuffer(b"x" + rows(1).tobytes(), np.uint8)[1:].view(np.float32).reshape(1, 3)
    assert bound.run({"INPUT": unaligned})[0]["OUTPUT"].tolist() == rows(1).tolist()
    empty = np.empty((0, 3), np.float32)
    assert bound.run({"INPUT": empty})[0]["OUTPUT"].shape == (0, 3)


def test_a_model_of_scalars(tmp_path: Path) -> None:
    names = ("A", "B")
    config = ModelConfig(
        name="m",
        input=tuple(ModelInput(name=name, data_type=DataType.FP32, dims=(1,)) for name in names),
        output=(ModelOutput(name="SUM", data_type=DataType.FP32, dims=(1,)),),
    )
    bound = Bound(tmp_path, onnx_models.scalar_sum(), config)
    if set(bound.session.signature.inputs) != set(names):
        pytest.fail(f"the model has {sorted(bound.session.signature.inputs)}")
    (found,) = bound.run({"A": np.array([2], np.float32), "B": np.array([3], np.float32)}, residency=KEEP_ALL)
    assert found["SUM"].shape == (1,)
    assert found["SUM"].to_host().tolist() == [5.0]


def test_a_device_without_memory_fails_the_batch_and_nothing_else(tmp_path: Path) -> None:
    bound = Bound(tmp_path, onnx_models.identity(), config_of(), memory_bytes=100)
    with pytest.raises(Unavailable, match="GPU 0: out of memory"):
        bound.run({"INPUT": rows(*range(50))})
    assert bound.device.counts["synchronize"] == 1  # before the memory of what is under way is used again
    assert bound.run({"INPUT": rows(1)})[0]["OUTPUT"].tolist() == rows(1).tolist()
    assert bound.device.counts["open"] == 0


def test_a_device_that_is_lost_ends_the_instance(tmp_path: Path) -> None:
    bound = Bound(tmp_path, onnx_models.identity(), config_of())
    bound.device.lost = True
    with pytest.raises(InstanceFailure, match="GPU 0 failed: the device was lost"):
        bound.run({"INPUT": rows(1)})


def test_an_error_of_the_runtime_fails_the_batch(tmp_path: Path) -> None:
    config = ModelConfig(
        name="m",
        max_batch_size=8,
        input=(ModelInput(name="INDEX", data_type=DataType.INT64, dims=(1,)),),
        output=(ModelOutput(name="DOUBLED", data_type=DataType.INT64, dims=(1,)),),
    )
    bound = Bound(tmp_path, onnx_models.gathering(), config)
    with pytest.raises(Internal, match=r"^onnx runtime error 1: Error in execution: .*Gather.*out of"):
        bound.run({"INDEX": np.array([[9]])})
    assert bound.run({"INDEX": np.array([[0]])})[0]["DOUBLED"].tolist() == [[0]]


def test_a_closed_instance(tmp_path: Path) -> None:
    bound = Bound(tmp_path, onnx_models.identity(), config_of())
    bound.instance.close()
    with pytest.raises(Internal, match="the instance was closed"):
        bound.run({"INPUT": rows(1)})


class Recorded(OnnxSession):
    """Notes the options of each run with bound tensors."""

    entries: list[dict[str, str]]

    def run_bound(self, binding: Any, options: session.RunOptions) -> None:
        names = ("gpu_graph_id", "disable_synchronize_execution_providers")
        found = {}
        for name in names:
            try:
                found[name] = "" if options.value is None else options.value.get_run_config_entry(name)
            except RuntimeError:
                continue
        self.entries.append(found)
        super().run_bound(binding, options)


class TestGraphs:
    @pytest.fixture
    def bound(self, tmp_path: Path) -> Bound:
        bound = Bound(tmp_path, onnx_models.affine(2, 1), config_of())
        bound.session.__class__ = Recorded
        bound.session.entries = []  # type: ignore[attr-defined]
        (name,) = bound.session.signature.inputs
        bound.config = ModelConfig(
            name="m",
            max_batch_size=8,
            input=(ModelInput(name=name, data_type=DataType.FP32, dims=(3,)),),
            output=tuple(ModelOutput(name=each, data_type=DataType.FP32, dims=(3,)) for each in bound.session.signature.outputs),
        )
        bound.instance = bound.made(captures=True)
        return bound

    @staticmethod
    def twice(bound: Bound, *values: float) -> list[list[float]]:
        (given,) = bound.session.signature.inputs
        ((found,),) = (result.values() for result in bound.run({given: rows(*values)}))
        return found.tolist()  # type: ignore[no-any-return]

    @staticmethod
    def ids(bound: Bound) -> list[str]:
        return [entry["gpu_graph_id"] for entry in bound.session.entries]  # type: ignore[attr-defined]

    def test_a_shape_is_a_graph_from_its_second_run_on(self, bound: Bound) -> None:
        for value in (1.0, 2.0, 3.0):
            assert self.twice(bound, value) == (rows(value) * 2 + 1).tolist()
        assert self.ids(bound) == ["-1", "1", "1"]
        assert all(entry["disable_synchronize_execution_providers"] == "1" for entry in bound.session.entries)  # type: ignore[attr-defined]

    def test_each_shape_has_a_graph_of_its_own(self, bound: Bound) -> None:
        for _ in range(3):
            assert self.twice(bound, 1.0) == (rows(1) * 2 + 1).tolist()
            assert self.twice(bound, 4.0, 5.0) == (rows(4, 5) * 2 + 1).tolist()
        assert self.ids(bound) == ["-1", "-1", "1", "2", "1", "2"]

    def test_outputs_that_stay_are_not_the_graphs_own(self, bound: Bound) -> None:
        (given,) = bound.session.signature.inputs
        kept = [bound.run({given: rows(float(number))}, residency=KEEP_ALL)[0] for number in range(4)]
        found = [array.to_host().tolist() for (array,) in (result.values() for result in kept)]
        assert found == [(rows(float(number)) * 2 + 1).tolist() for number in range(4)]

    def test_no_more_graphs_than_there_may_be(self, bound: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
        assert CUDA_GRAPHS_MAX >= 8
        monkeypatch.setattr("tpy_backends.onnxruntime.graphs.CUDA_GRAPHS_MAX", 1)
        for _ in range(2):
            self.twice(bound, 1.0)
            self.twice(bound, 1.0, 2.0)
        assert self.ids(bound) == ["-1", "-1", "1", "-1"]


def accelerated(*accelerators: ExecutionAccelerator, **parameters: str) -> ModelConfig:
    given = ExecutionAccelerators(gpu_execution_accelerator=accelerators)
    return ModelConfig(
        name="m",
        optimization=Optimization(execution_accelerators=given),
        parameters={key: ModelParameter(string_value=value) for key, value in parameters.items()},
    )


class TestProviders:
    GPU = InstanceKind.KIND_GPU
    OFFERED = (TENSORRT, CUDA, CPU)

    def test_the_stream_of_an_instance_reaches_both_providers(self) -> None:
        config = accelerated(ExecutionAccelerator(name="tensorrt", parameters={"precision_mode": "FP16"}))
        found = providers_for(config, kind=self.GPU, device_id=1, offered=self.OFFERED, stream=4711)
        assert found == (
            (TENSORRT, {"trt_fp16_enable": "True", "device_id": "1", "user_compute_stream": "4711"}),
            (CUDA, {"device_id": "1", "user_compute_stream": "4711"}),
            (CPU, {}),
        )

    @pytest.mark.parametrize(
        ("accelerator", "expected"),
        [
            (ExecutionAccelerator(name="cuda", parameters={"enable_cuda_graph": "1"}), True),
            (ExecutionAccelerator(name="cuda", parameters={"enable_cuda_graph": "0"}), False),
            (ExecutionAccelerator(name="tensorrt", parameters={"trt_cuda_graph_enable": "true"}), True),
            (ExecutionAccelerator(name="tensorrt"), False),
        ],
    )
    def test_graphs_are_asked_for_by_an_option(self, accelerator: ExecutionAccelerator, expected: bool) -> None:
        config = accelerated(accelerator)
        assert captures(providers_for(config, kind=self.GPU, device_id=0, offered=self.OFFERED)) is expected

    def test_an_accelerator_that_is_not_there_says_what_to_install(self) -> None:
        config = accelerated(ExecutionAccelerator(name="tensorrt"))
        with pytest.raises(InvalidArgument) as caught:
            providers_for(config, kind=self.GPU, device_id=0, offered=(CUDA, CPU))
        assert caught.value.message == (
            "unknown Execution Accelerator 'tensorrt' is requested: the installed ONNX Runtime has no TensorrtExecutionProvider "
            "(it has CPUExecutionProvider, CUDAExecutionProvider); `pip uninstall -y onnxruntime && pip install onnxruntime-gpu "
            "tensorrt` brings one"
        )


class TestModels:
    """Making instances of a GPU: the providers are a record, the sessions are the CPU's."""

    @pytest.fixture
    def opened(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []

        def open_on_cpu(config: ModelConfig, **facts: Any) -> tuple[tuple[str, dict[str, str]], ...]:
            chosen = providers_for(config, **{**facts, "offered": (CUDA, TENSORRT, CPU)})
            found.append(dict(chosen[0][1]))
            return ((CPU, {key: value for key, value in chosen[0][1].items() if key == "enable_cuda_graph"}),)

        monkeypatch.setattr("tpy_backends.onnxruntime.model.providers_for", open_on_cpu)
        monkeypatch.setattr("tests.backends.test_onnxruntime_devices.FakeStreams.handle", 99)
        monkeypatch.setattr(FakeDevice, "stream", lambda device: FakeStreams(device))
        return found

    def model(self, tmp_path: Path, config: ModelConfig, *devices: FakeDevice) -> tuple[OnnxModel, list[str]]:
        (tmp_path / "m" / "1").mkdir(parents=True)
        (tmp_path / "m" / "1" / "model.onnx").write_bytes(onnx_models.identity())
        told: list[str] = []
        context = ModelContext(
            name="m",
            version=1,
            generation=1,
            config=config,
            model_directory=tmp_path / "m",
            version_directory=tmp_path / "m" / "1",
            devices=Devices(devices),
            log=lambda level, message: told.append(message) if level == "warning" else None,
        )
        return OnnxModel(context, OnnxRuntimeConfig()), told

    ON_GPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_GPU)

    def test_each_instance_has_a_session_and_a_stream_of_its_own(self, tmp_path: Path, opened: list[dict[str, str]]) -> None:
        model, _ = self.model(tmp_path, config_of(), FakeDevice())
        instances = [model.create_instance(self.ON_GPU) for _ in range(2)]
        assert all(isinstance(instance, DeviceOnnxInstance) for instance in instances)
        assert opened == [{"device_id": "0", "user_compute_stream": "99"}] * 2

    def test_instances_share_a_session_when_the_model_says_so(self, tmp_path: Path, opened: list[dict[str, str]]) -> None:
        config = config_of()
        config = ModelConfig(
            name="m",
            max_batch_size=8,
            input=config.input,
            output=config.output,
            parameters={"share_session_between_instances": ModelParameter(string_value="true")},
        )
        model, _ = self.model(tmp_path, config, FakeDevice())
        instances = [model.create_instance(self.ON_GPU) for _ in range(2)]
        assert [type(instance) for instance in instances] == [OnnxInstance] * 2
        assert opened == [{"device_id": "0"}]

    @pytest.mark.parametrize(
        "config",
        [
            config_of(DataType.BYTES),
            msgspec.structs.replace(
                config_of(), input=(ModelInput(name="INPUT", data_type=DataType.FP32, dims=(3,), allow_ragged_batch=True),)
            ),
        ],
        ids=["strings", "ragged"],
    )
    def test_models_whose_tensors_pass_through_the_host(
        self, tmp_path: Path, opened: list[dict[str, str]], config: ModelConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tpy_backends.onnxruntime.model.validate", lambda config, signature: None)
        model, _ = self.model(tmp_path, config, FakeDevice())
        assert type(model.create_instance(self.ON_GPU)) is OnnxInstance
        assert opened == [{"device_id": "0"}]

    def test_without_a_driver_tensors_pass_through_the_host_and_nothing_is_captured(
        self, tmp_path: Path, opened: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = ExecutionAccelerators(
            gpu_execution_accelerator=(ExecutionAccelerator(name="cuda", parameters={"enable_cuda_graph": "1"}),)
        )
        plain = config_of()
        config = ModelConfig(
            name="m",
            max_batch_size=8,
            input=plain.input,
            output=plain.output,
            optimization=Optimization(execution_accelerators=given),
        )
        model, told = self.model(tmp_path, config)
        monkeypatch.setattr(session, "captures", lambda providers: True)
        instance = model.create_instance(self.ON_GPU)
        assert type(instance) is OnnxInstance
        assert told == ["model 'm': CUDA graphs are not used, because the server has no streams on this device"]
        assert opened == [{"device_id": "0", "enable_cuda_graph": "1"}]
        assert device_instance.NO_CAPTURE == {"gpu_graph_id": "-1"}


class FakeStreams:
    """A stream with a handle, as CUDA's have."""

    handle = 0

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    def synchronize(self) -> None:
        self._device.counts["synchronize"] += 1
