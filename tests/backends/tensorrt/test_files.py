"""Engines: reading them, what they complete and what does not fit them, and why one is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.backends.tensorrt.fake import plan, tensor
from tests.backends.tensorrt.models import DOUBLE, FP32, Machine, config_of, double_config, placement
from tpy.backend import BackendSettings
from tpy.config import ModelConfig
from tpy.config.model_config import (
    ControlKind,
    DynamicBatching,
    InstanceGroup,
    InstanceKind,
    ModelInput,
    ModelOutput,
    ModelParameter,
    SequenceBatching,
    SequenceControl,
    SequenceControlInput,
    TensorReshape,
)
from tpy.devices import NO_DEVICES
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable, Unsupported
from tpy.messages import DataType
from tpy_backends.tensorrt import create
from tpy_backends.tensorrt.library import find_library
from tpy_backends.tensorrt.plan import built_by, explain

BARE = ModelConfig(
    name="m",
    backend="tensorrt",
    platform="tensorrt_plan",
    instance_group=(InstanceGroup(name="m", kind=InstanceKind.KIND_GPU, gpus=(0,), count=1),),
)


def completed(folder: Path, config: ModelConfig, content: bytes) -> ModelConfig:
    machine = Machine()
    return machine.backend().auto_complete(machine.context(folder, config, content))


def refusal_of_load(folder: Path, config: ModelConfig, content: bytes, machine: Machine | None = None) -> TpyError:
    machine = machine or Machine()
    with pytest.raises(TpyError) as refusal:
        machine.backend().load(machine.context(folder, config, content)).create_instance(placement(config))
    return refusal.value


class TestCompletion:
    def test_all_of_an_engine_that_batches(self, tmp_path: Path) -> None:
        config = completed(tmp_path, BARE, DOUBLE)
        assert config.max_batch_size == 4
        assert config.dynamic_batching == DynamicBatching()
        assert config.input == (ModelInput(name="x", data_type=FP32, dims=(4,)),)
        assert config.output == (ModelOutput(name="y", data_type=FP32, dims=(4,)),)

    def test_the_batch_size_is_the_largest_of_the_profiles_that_are_used(self, tmp_path: Path) -> None:
        group = msgspec.structs.replace(BARE.instance_group[0], profile=("0", "1"))
        assert completed(tmp_path, msgspec.structs.replace(BARE, instance_group=(group,)), DOUBLE).max_batch_size == 16
        group = msgspec.structs.replace(group, profile=("2",))
        with pytest.raises(Internal, match=r"invalid profile 2 \. Number of profiles supported by TensorRT engine: 2"):
            completed(tmp_path, msgspec.structs.replace(BARE, instance_group=(group,)), DOUBLE)

    def test_what_is_given_stays(self, tmp_path: Path) -> None:
        config = msgspec.structs.replace(BARE, max_batch_size=2, input=(ModelInput(name="x", dims=(-1,)),))
        config = completed(tmp_path, config, DOUBLE)
        assert (config.max_batch_size, config.dynamic_batching) == (2, DynamicBatching())
        assert config.input == (ModelInput(name="x", data_type=FP32, dims=(-1,)),)
        assert config.output == (ModelOutput(name="y", data_type=FP32, dims=(4,)),)

    def test_dims_tell_whether_it_batches(self, tmp_path: Path) -> None:
        whole = msgspec.structs.replace(BARE, input=(ModelInput(name="x", data_type=FP32, dims=(-1, 4)),))
        config = completed(tmp_path, whole, DOUBLE)
        assert (config.max_batch_size, config.dynamic_batching) == (0, None)
        assert config.output[0].dims == (-1, 4)
        mixed = msgspec.structs.replace(
            BARE, input=(ModelInput(name="x", dims=(4,)),), output=(ModelOutput(name="y", dims=(-1, 4)),)
        )
        with pytest.raises(Internal, match="contradicting each other in terms of whether batching is supported"):
            completed(tmp_path, mixed, DOUBLE)

    @pytest.mark.parametrize(("shape", "size"), [((1, 4), 1), ((8, 4), 0), ((), 0)], ids=["one row", "eight rows", "scalar"])
    def test_fixed_shapes(self, tmp_path: Path, shape: tuple[int, ...], size: int) -> None:
        content = plan("double", tensor("x", "INPUT", shape), tensor("y", "OUTPUT", shape), profiles=[{}])
        config = completed(tmp_path, BARE, content)
        assert config.max_batch_size == size
        assert config.input[0].dims == (shape[1:] if size else shape or (1,))
        assert config.dynamic_batching is None
        if not size and shape:
            with pytest.raises(Internal, match="specified max-batch 2 but TensorRT engine only supports max-batch 0"):
                completed(tmp_path, msgspec.structs.replace(BARE, max_batch_size=2), content)

    def test_shape_tensors_are_marked_and_have_no_batch_size(self, tmp_path: Path) -> None:
        content = plan(
            "fill",
            tensor("x", "INPUT", (-1, 1)),
            tensor("shape", "INPUT", (3,), "INT32", is_shape=True),
            tensor("y", "OUTPUT", (-1, -1, -1)),
            tensor("shape_out", "OUTPUT", (3,), "INT64", is_shape=True),
            profiles=[{"x": [(1, 1), (2, 1), (4, 1)]}],
            values=[{"shape": [(1, 1, 1), (2, 2, 2), (3, 9, 9)]}],
        )
        config = completed(tmp_path, BARE, content)
        assert config.max_batch_size == 3
        assert config.input[1] == ModelInput(name="shape", data_type=DataType.INT32, dims=(2,), is_shape_tensor=True)
        assert config.output[1] == ModelOutput(name="shape_out", data_type=DataType.INT64, dims=(2,), is_shape_tensor=True)
        wrong = msgspec.structs.replace(BARE, input=(ModelInput(name="x", dims=(1,), is_shape_tensor=True),))
        with pytest.raises(InvalidArgument, match="'x' is incorrectly specified as a shape tensor"):
            completed(tmp_path, wrong, content)

    def test_a_scalar_for_each_row(self, tmp_path: Path) -> None:
        content = plan("double", tensor("x", "INPUT", (-1,)), tensor("y", "OUTPUT", (-1,)), profiles=[{"x": [(1,), (2,), (4,)]}])
        assert completed(tmp_path, BARE, content).input == (
            ModelInput(name="x", data_type=FP32, dims=(1,), reshape=TensorReshape(shape=())),
        )

    def test_without_a_gpu(self, tmp_path: Path) -> None:
        machine = Machine()
        config = msgspec.structs.replace(BARE, instance_group=())
        context = msgspec.structs.replace(machine.context(tmp_path, config, DOUBLE), devices=NO_DEVICES)
        with pytest.raises(
            Unavailable, match="an engine of TensorRT can be read on a GPU only, and this machine has no usable GPU"
        ):
            machine.backend().auto_complete(context)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            double_config(max_batch_size=0),
            "the model expects 2 dimensions (shape [-1,4]) but the model configuration specifies 1",
        ),
        (
            config_of(inputs={"x": (DataType.INT32, (4,))}, outputs={"y": (FP32, (4,))}, max_batch_size=4),
            "unexpected datatype TYPE_FP32 for inference input 'x', expecting TYPE_INT32 for m",
        ),
        (
            config_of(inputs={"x": (FP32, (4,))}, outputs={"y": (FP32, (5,))}, max_batch_size=4),
            "making complete shape [-1,5])",
        ),
        (
            config_of(inputs={"x": (FP32, (4,)), "z": (FP32, (4,))}, outputs={"y": (FP32, (4,))}, max_batch_size=4),
            "configuration expects 2 inputs, model provides at most 1",
        ),
        (
            config_of(inputs={"z": (FP32, (4,))}, outputs={"y": (FP32, (4,))}, max_batch_size=4),
            "unexpected inference input 'z', allowed inputs are: x",
        ),
        (
            config_of(inputs={"x": (FP32, (4,))}, outputs={"z": (FP32, (4,))}, max_batch_size=4),
            "unexpected inference output 'z', allowed outputs are: y",
        ),
        (
            config_of(inputs={}, outputs={"y": (FP32, (4,))}, max_batch_size=4),
            "expected configuration for input 'x' for m",
        ),
        (double_config(profile=("7",)), "Expected optimization profile index range 0-1"),
        (
            double_config(parameters={"execution_context_allocation_strategy": ModelParameter(string_value="LAZY")}),
            "Supported values are 'STATIC' and 'ON_PROFILE_CHANGE'.",
        ),
        (double_config(parameters={"enable_multi_device": ModelParameter(string_value="true")}), "several GPUs"),
        (
            double_config(
                sequence_batching=SequenceBatching(
                    control_input=(
                        SequenceControlInput(
                            name="start",
                            control=(SequenceControl(kind=ControlKind.CONTROL_SEQUENCE_START, fp32_false_true=(0, 1)),),
                        ),
                    )
                )
            ),
            "input 'start' not found for m; the engine has x",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(tmp_path: Path, config: ModelConfig, text: str) -> None:
    error = refusal_of_load(tmp_path, config, DOUBLE)
    assert isinstance(error, InvalidArgument)
    assert text in error.message


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"form": "CHW32"}, Unsupported, "input 'x' for model 'm' has the format CHW32 of TensorRT, which tpy does not make"),
        ({"dtype": "FP8"}, InvalidArgument, "unexpected datatype TYPE_FP8 of TensorRT for inference input 'x'"),
    ],
)
def test_tensors_that_no_request_can_have_are_refused(tmp_path: Path, change: Any, kind: type[TpyError], text: str) -> None:
    content = plan(
        "double",
        tensor("x", "INPUT", (-1, 4), **change),
        tensor("y", "OUTPUT", (-1, 4)),
        profiles=[{"x": [(1, 4), (2, 4), (4, 4)]}],
    )
    error = refusal_of_load(tmp_path, double_config(), content)
    assert isinstance(error, kind)
    assert text in error.message


def container(content: bytes = b"", *, size: int | None = None, version: bytes = bytes([1, 7, 1, 116])) -> bytes:
    """The head of a file that TensorRT for RTX 1.7.1.116 writes."""
    total = 64 + len(content) if size is None else size
    return b"vtrt" + bytes(4) + (2).to_bytes(8, "little") + total.to_bytes(8, "little") + version + bytes(36) + content


class TestRefusals:
    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (b"", "'model.plan' is not a TensorRT engine: the file is empty"),
            (b"version https://git-lfs.github.com/spec/v1\noid", "it is a pointer of Git LFS"),
            (container(bytes(100), size=20516), "it is cut off: 164 of 20516 bytes"),
            (b"PK\x03\x04 and so on", "'model.plan' is not a TensorRT engine: it is a zip archive: it is served with backend: "),
            (b"\xffPK and so on", "the file is not a TensorRT engine, or not for tensorrt (Serialization assertion"),
        ],
    )
    def test_what_is_no_engine(self, tmp_path: Path, content: bytes, text: str) -> None:
        error = refusal_of_load(tmp_path, double_config(), content)
        assert isinstance(error, InvalidArgument)
        assert text in error.message

    @pytest.mark.parametrize(
        ("said", "kind", "text"),
        [
            (
                (
                    "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is generated on an "
                    "incompatible "
                    "device, expecting compute 7.5 got compute 8.6, please rebuild.)"
                ),
                InvalidArgument,
                (
                    "it was built for a GPU of compute capability 8.6, and this one has 7.5: build it on a GPU of that kind, "
                    "or with "
                    "hardware compatibility ("
                ),
            ),
            (
                (
                    "The engine plan file is not compatible with this version of TensorRT, expecting library version "
                    "10.14.1.48 got "
                    "10.3.0.26, please rebuild."
                ),
                InvalidArgument,
                (
                    "it was built by TensorRT 10.3.0.26, and tensorrt 10.14.1.48 is installed: build it again with the TensorRT "
                    "that is to"
                ),
            ),
            (
                (
                    "Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. Note: "
                    "Current "
                    "Version: 239, Serialized Engine Version: 236"
                ),
                InvalidArgument,
                "it was built by an older version of TensorRT than tensorrt 10.14.1.48, which is installed",
            ),
            (
                "Cannot deserialize engine with lean runtime since IRuntime::setEngineHostCodeAllowed() was not called",
                InvalidArgument,
                ("it contains its own runtime, which is code: allow that with --backend-config=tensorrt,version-compatible=true"),
            ),
            (
                (
                    "IPluginRegistry::getCreator: Error Code 4: API Usage Error (Cannot find plugin: Scatter2D, version: 1, "
                    "namespace:.)"
                ),
                InvalidArgument,
                "it needs the plugin Scatter2D: name its library with --backend-config=tensorrt,plugins=PATH",
            ),
            (
                "Error Code 2: OutOfMemory (Requested size was 8589934592 bytes.)",
                Unavailable,
                "its weights do not fit into the memory that the GPU has left",
            ),
            (
                "Error Code 1: Cuda Runtime (cudaError 35: CUDA driver version is insufficient for CUDA runtime version)",
                Unavailable,
                "tensorrt 10.14.1.48 finds no GPU with a driver that is new enough",
            ),
            ("something new", Internal, "tensorrt 10.14.1.48 refuses it (something new)"),
        ],
    )
    def test_a_sentence_for_each_reason(self, tmp_path: Path, said: str, kind: type[TpyError], text: str) -> None:
        machine = Machine()
        machine.library.refusal = said
        error = refusal_of_load(tmp_path, double_config(), DOUBLE, machine)
        assert type(error) is kind
        assert f"unable to create TensorRT engine for model 'm': {text}" in error.message
        assert said in error.message

    @pytest.mark.parametrize(
        ("flags", "text"),
        [
            (1, "it was built by version 1.7.1.116, and tensorrt 10.14.1.48 is installed"),
            (2, "it was not built by version 1.7.1.116 for GPUs of this kind"),
            (4, "no GPU with a driver that is new enough"),
            (16, "weights do not fit"),
            (0, "it was built by version 1.7.1.116, and tensorrt 10.14.1.48 is installed"),
        ],
    )
    def test_what_its_head_tells(self, tmp_path: Path, flags: int, text: str) -> None:
        machine = Machine()
        machine.library.refusal = "Internal Error"
        machine.library.diagnostics = flags
        assert text in refusal_of_load(tmp_path, double_config(), container(b"engine"), machine).message

    def test_the_version_that_built_it(self) -> None:
        assert built_by(container()) == "1.7.1.116"
        assert built_by(DOUBLE) == built_by(b"vtrt") == ""
        assert explain(["magicTag"], "tensorrt 10", "")[1] is InvalidArgument

    def test_a_missing_file(self, tmp_path: Path) -> None:
        machine = Machine()
        context = machine.context(tmp_path, double_config(), DOUBLE, "engine.plan")
        with pytest.raises(Unavailable, match=r"the folder holds engine.plan; rename engine.plan, or set default_model_filename"):
            machine.backend().load(context)

    def test_the_usual_other_name_is_found(self, tmp_path: Path) -> None:
        machine = Machine()
        machine.backend().load(machine.context(tmp_path, double_config(), DOUBLE, "model.engine")).unload()
        assert machine.library.calls == [("deserialize", False, -1)]


class TestSettings:
    def test_version_compatible_engines_are_let_in_when_that_is_asked_for(self, tmp_path: Path) -> None:
        machine = Machine(version_compatible="true")
        machine.backend().load(machine.context(tmp_path, double_config(), DOUBLE)).unload()
        assert machine.library.calls == [("deserialize", True, -1)]

    def test_plugins_are_loaded_first(self) -> None:
        machine = Machine(plugins="/one.so;/two.so;")
        machine.backend()
        assert machine.library.registry.loaded == ["/one.so", "/two.so"]
        with pytest.raises(Unavailable, match=r"unable to load TensorRT plugin '/missing.so'"):
            Machine(plugins="/missing.so").backend()

    def test_wrong_values(self) -> None:
        with pytest.raises(InvalidArgument, match="failed to convert 'perhaps' to boolean"):
            Machine(version_compatible="perhaps").backend()
        with pytest.raises(InvalidArgument, match="unknown library 'torch'"):
            create(BackendSettings(name="tensorrt", config={"library": "torch"}))

    def test_without_tensorrt_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("tensorrt", "tensorrt_rtx"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(Unavailable, match=r"backend 'tensorrt' needs TensorRT.*install it with tpy's extra `tensorrt`"):
            find_library("tensorrt")
