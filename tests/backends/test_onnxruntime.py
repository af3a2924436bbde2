"""The onnxruntime backend on real sessions: datatypes, shapes, files, errors, sharing."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import subprocess
import sys
import weakref
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import onnx
import pytest

from tests.backends import onnx_models
from tests.pace import at_pace
from tpy.backend import Backend, BackendSettings, HostPolicy, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import (
    ExecutionAccelerator,
    ExecutionAccelerators,
    InstanceGroup,
    InstanceKind,
    ModelInput,
    ModelOperations,
    ModelOutput,
    ModelParameter,
    Optimization,
    OptimizationGraph,
    TensorReshape,
)
from tpy.errors import Internal, InvalidArgument, Unavailable, Unsupported
from tpy.messages import DataType
from tpy.testing import HostedInstance, HostedModel, batch_of, request_of
from tpy_backends.onnxruntime import create
from tpy_backends.onnxruntime.session import OnnxSession, from_runtime, to_runtime
from tpy_backends.onnxruntime.settings import SessionSettings

BARE = ModelConfig(name="m", backend="onnxruntime")
ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return create(BackendSettings(name="onnxruntime"))


def completed(backend: Backend, root: Path, content: bytes | None, config: ModelConfig = BARE) -> ModelContext:
    """The model on disk, its configuration completed by the backend."""
    context = onnx_models.write(root, content, config)
    return msgspec.structs.replace(context, config=backend.auto_complete(context))


def run(instance: HostedInstance, context: ModelContext, **inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Outputs by name of one request; raises its error."""
    result = instance.execute(request_of(context.config, {name: np.asarray(array) for name, array in inputs.items()}))[0]
    if result.error is not None:
        raise result.error
    return {tensor.name: tensor.array for tensor in result.outputs}


VALUES: dict[DataType, list[Any]] = {
    DataType.BOOL: [True, False, True],
    DataType.BYTES: [b"", "grün".encode(), b"zero \0 inside"],
    **{kind: [0, 1, 100] for kind in (DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64)},
    **{kind: [-100, 0, 100] for kind in (DataType.INT8, DataType.INT16, DataType.INT32, DataType.INT64)},
    **{kind: [-1.5, 0, float("inf")] for kind in (DataType.FP16, DataType.FP32, DataType.FP64, DataType.BF16)},
}


def core_sets() -> Counter[str]:
    """The number of threads of this process by the cores on which they may run, as Linux writes them."""
    found: Counter[str] = Counter()
    for status in Path("/proc/self/task").glob("*/status"):
        with contextlib.suppress(OSError):
            found.update(re.findall(r"Cpus_allowed_list:\s*(\S+)", status.read_text()))
    return found


def test_threads_of_a_session_are_bound_by_the_host_policy(tmp_path: Path) -> None:
    """Also when the session is opened by load, in a thread that is not bound. A thread for each core, less the caller's."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("needs two cores")
    backend = create(BackendSettings(name="onnxruntime"))
    context = completed(backend, tmp_path, onnx_models.matmul())
    before = core_sets()
    host = HostPolicy(cpu_cores=tuple(cores))
    placement = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU, host_policy="cpu", host=host)
    model = backend.load(msgspec.structs.replace(context, placements=(placement,)))
    opened = core_sets() - before
    instance = model.create_instance(placement)
    assert sum((core_sets() - before).values()) == sum(opened.values()) == 1  # the instance shares that session
    assert opened.keys() <= {f"{cores[0]}-{cores[1]}", f"{cores[0]},{cores[1]}"}
    instance.close()
    model.unload()


def test_sessions_that_are_made_together_do_not_keep_the_cores_busy(tmp_path: Path) -> None:
    """Their threads wait for work by spinning, tens of milliseconds each if left to themselves; a process of its own, so that the
    CPU time is theirs. To look at a model no threads are made at all."""
    context = onnx_models.write(tmp_path, onnx_models.matmul(), BARE)
    program = """
import sys, time
from pathlib import Path
from tpy.backend import BackendSettings, ModelContext
from tpy.config import ModelConfig
from tpy_backends.onnxruntime import create
backend = create(BackendSettings(name="onnxruntime"))
root = Path(sys.argv[1])
def context(config):
    return ModelContext(name="m", version=1, generation=1, config=config, model_directory=root, version_directory=root / "1")
config = backend.auto_complete(context(ModelConfig(name="m")))
began = time.process_time()
models = [backend.load(context(config)) for _ in range(30)]
for model in models:
    model.unload()  # joins the threads
print(time.process_time() - began)
"""
    made = subprocess.run(
        [sys.executable, "-c", program, str(context.model_directory)], check=True, timeout=60, stdout=subprocess.PIPE, text=True
    )
    assert float(made.stdout) < at_pace(0.5)


def test_a_model_that_is_only_looked_at_gets_no_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    opened = OnnxSession.__init__

    def record(self: OnnxSession, path: Path, settings: SessionSettings, **rest: Any) -> None:
        made.append((settings.intra_op_thread_count, settings.inter_op_thread_count))
        opened(self, path, settings, **rest)

    monkeypatch.setattr(OnnxSession, "__init__", record)
    backend = create(BackendSettings(name="onnxruntime"))
    completed(backend, tmp_path, onnx_models.matmul())
    assert made == [(1, 1)]


def test_the_table_of_values_is_total() -> None:
    assert VALUES.keys() == onnx_models.ELEMENT_TYPES.keys() == set(DataType) - {DataType.INVALID}


@pytest.mark.parametrize("datatype", VALUES, ids=lambda kind: kind.value)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_every_datatype_goes_in_and_comes_out(backend: Backend, tmp_path: Path, datatype: DataType, rows: int) -> None:
    context = completed(backend, tmp_path, onnx_models.identity(datatype))
    assert (context.config.input[0].data_type, context.config.output[0].data_type) == (datatype, datatype)
    array = np.array([VALUES[datatype]] * rows, dtype=datatype.numpy).reshape(rows, 3)
    with HostedModel(backend, context) as model:
        output = run(model.instance(ON_CPU), context, INPUT=array)["OUTPUT"]
    assert output.dtype == datatype.numpy
    assert output.shape == array.shape
    assert output.tolist() == array.tolist()


def test_dynamic_shapes(backend: Backend, tmp_path: Path) -> None:
    context = completed(backend, tmp_path, onnx_models.identity(shape=("N", "H", "W")))
    assert context.config.input[0].dims == (-1, -1)
    with HostedModel(backend, context) as model:
        instance = model.instance(ON_CPU)
        for shape in ((1, 2, 3), (4, 5, 1), (2, 0, 7)):
            array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            assert run(instance, context, INPUT=array)["OUTPUT"].tolist() == array.tolist()


def test_scalars_take_the_configured_shape(backend: Backend, tmp_path: Path) -> None:
    context = completed(backend, tmp_path, onnx_models.scalar_sum())
    assert [tensor.dims for tensor in (*context.config.input, *context.config.output)] == [(1,)] * 3
    with HostedModel(backend, context) as model:
        outputs = run(model.instance(ON_CPU), context, A=np.array([2], np.float32), B=np.array([3], np.float32))
    assert outputs["SUM"].tolist() == [5]


def test_a_batch_of_numbers_has_an_empty_reshape(backend: Backend, tmp_path: Path) -> None:
    context = completed(backend, tmp_path, onnx_models.identity(shape=("N",)))
    assert (context.config.input[0].dims, context.config.input[0].reshape) == ((1,), TensorReshape(shape=()))
    with HostedModel(backend, context) as model:
        assert run(model.instance(ON_CPU), context, INPUT=np.array([1, 2], np.float32))["OUTPUT"].tolist() == [1, 2]


def test_an_initializer_may_be_overridden_by_an_optional_input(backend: Backend, tmp_path: Path) -> None:
    vector = {"data_type": DataType.FP32, "dims": (2,)}
    config = msgspec.structs.replace(
        BARE,
        input=(ModelInput(name="INPUT", **vector), ModelInput(name="BIAS", optional=True, **vector)),
        output=(ModelOutput(name="OUTPUT", **vector),),
    )
    context = onnx_models.write(tmp_path, onnx_models.overridable(), config)
    with HostedModel(backend, context) as model:
        instance = model.instance(ON_CPU)
        ones = np.ones(2, np.float32)
        assert run(instance, context, INPUT=ones)["OUTPUT"].tolist() == [11, 21]
        assert run(instance, context, INPUT=ones, BIAS=ones)["OUTPUT"].tolist() == [2, 2]


def test_what_the_runtime_can_read_is_not_copied() -> None:
    for datatype in set(DataType) - {DataType.INVALID, DataType.BYTES}:
        array = np.zeros((2, 3), datatype.numpy)
        assert to_runtime(array, datatype, scalar=False) is array
        assert from_runtime(array, datatype, scalar_shape=(1,)) is array
    transposed = np.zeros((2, 3), np.float32).T
    assert to_runtime(transposed, DataType.FP32, scalar=False) is transposed


def test_only_what_is_asked_for_is_fetched(backend: Backend, tmp_path: Path) -> None:
    context = completed(backend, tmp_path, onnx_models.gathering())
    with HostedModel(backend, context) as model:
        request = request_of(context.config, {"INDEX": np.array([[1]])}, requested_outputs=("DOUBLED",))
        result = model.instance(ON_CPU).execute(request)[0]
    assert [(tensor.name, tensor.array.tolist()) for tensor in result.outputs] == [("DOUBLED", [[2]])]


def test_text_that_is_not_utf_8_goes_in(backend: Backend, tmp_path: Path) -> None:
    context = completed(backend, tmp_path, onnx_models.encoding())
    with HostedModel(backend, context) as model:
        texts = np.array([[b"\xff\xfe"], [b"two"], [b"drei"], [b""]], dtype=object)
        assert run(model.instance(ON_CPU), context, INPUT=texts)["OUTPUT"].tolist() == [[-1], [2], [3], [-1]]


def test_text_that_is_not_utf_8_cannot_come_out(backend: Backend, tmp_path: Path) -> None:
    context = completed(backend, tmp_path, onnx_models.identity(DataType.BYTES, ["K"]))
    with HostedModel(backend, context) as model:
        instance = model.instance(ON_CPU)
        with pytest.raises(Internal, match=r"^onnx runtime error 1: .*utf-8"):
            run(instance, context, INPUT=np.array([b"\xff\xfe"], dtype=object))
        assert run(instance, context, INPUT=np.array([b"ok"], dtype=object))["OUTPUT"].tolist() == [b"ok"]


@pytest.mark.parametrize("name", ["logreg_iris", "sequence"])
def test_sequences_and_maps_are_refused(backend: Backend, tmp_path: Path, name: str) -> None:
    if name == "sequence":
        content = onnx_models.sequence_output()
    else:
        spec = find_spec("onnxruntime")
        assert spec is not None
        assert spec.origin is not None
        content = (Path(spec.origin).parent / "datasets" / "logreg_iris.onnx").read_bytes()
    with pytest.raises(
        Unsupported, match=r"^Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O '(OUTPUT|probabilities)', expected"
    ):
        completed(backend, tmp_path, content)


class TestFiles:
    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (b"not a model", r"^onnx runtime error 7: Load model from .*model\.onnx failed:Protobuf parsing failed\.$"),
            (
                b"",
                r"^onnx runtime error 2: .*model\.onnx failed:No graph was found in the protobuf\.; the file is empty",
            ),
            (
                onnx_models.matmul()[:-20],
                r"failed:Protobuf parsing failed\.; it begins as a model of ONNX, so it is damaged",
            ),
            (b"version https://git-lfs", r"failed:Protobuf parsing failed\.; it is a pointer of Git LFS: fetch the file itself"),
        ],
        ids=["text", "empty", "truncated", "pointer"],
    )
    def test_a_file_that_is_no_model(self, backend: Backend, tmp_path: Path, content: bytes, text: str) -> None:
        with pytest.raises(Internal, match=text):
            completed(backend, tmp_path, content)

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ("ir_version", "Unsupported model IR version: 99, max supported IR version"),
            ("opset", "Opset 999 is under development"),
            ("operator", "No Op registered for Nonesuch"),
            ("domain", "com.nobody:MatMul.* is not a registered function/op"),
        ],
    )
    def test_what_a_newer_runtime_or_a_library_would_know(self, backend: Backend, tmp_path: Path, change: str, text: str) -> None:
        model = onnx.load_model_from_string(onnx_models.matmul())
        match change:
            case "ir_version":
                model.ir_version = 99
            case "opset":
                model.opset_import[0].version = 999
            case "operator":
                model.graph.node[0].op_type = "Nonesuch"
            case _:
                model.graph.node[0].domain = "com.nobody"
                model.opset_import.add(domain="com.nobody", version=1)
        with pytest.raises(Internal, match=rf"^onnx runtime error \d+: [\s\S]*{text}"):
            completed(backend, tmp_path, model.SerializeToString())

    def test_a_missing_file(self, backend: Backend, tmp_path: Path) -> None:
        path = tmp_path / "m" / "1" / "model.onnx"
        with pytest.raises(Unavailable) as refusal:
            completed(backend, tmp_path, None)
        assert str(refusal.value) == f"unable to find '{path}' for model instance 'm'; the folder holds nothing"

    def test_a_pipe_is_no_model(self, backend: Backend, tmp_path: Path) -> None:
        path = tmp_path / "m" / "1" / "model.onnx"
        path.parent.mkdir(parents=True)
        os.mkfifo(path)
        with pytest.raises(Unavailable, match="is not a file, for model instance 'm'"):
            completed(backend, tmp_path, None)

    @pytest.mark.parametrize("filename", ["other.onnx", "model.onnx/model.onnx"])
    def test_another_name_and_a_directory(self, backend: Backend, tmp_path: Path, filename: str) -> None:
        config = msgspec.structs.replace(BARE, default_model_filename=filename.split("/")[0])
        onnx_models.write(tmp_path, onnx_models.matmul(), config, filename=filename)
        assert completed(backend, tmp_path, None, config).config.output[0].dims == (2,)

    @pytest.mark.parametrize("filename", ["../../secret.onnx", "/etc/secret.onnx", "a/../../b.onnx"])
    def test_a_name_that_leaves_the_version_directory(self, backend: Backend, tmp_path: Path, filename: str) -> None:
        with pytest.raises(InvalidArgument, match=f"model filename '{filename}' must be inside the version directory"):
            completed(backend, tmp_path, None, msgspec.structs.replace(BARE, default_model_filename=filename))

    def test_weights_in_a_file_beside_the_model(self, backend: Backend, tmp_path: Path) -> None:
        model = onnx.load_model_from_string(onnx_models.matmul())
        folder = tmp_path / "m" / "1" / "model.onnx"
        folder.mkdir(parents=True)
        onnx.save_model(model, str(folder / "model.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=0)
        context = completed(backend, tmp_path, None)
        with HostedModel(backend, context) as hosted:
            assert run(hosted.instance(ON_CPU), context, INPUT=np.ones((1, 3), np.float32))["OUTPUT"].tolist() == [[9, 12]]


class TestErrors:
    def test_an_error_of_the_runtime_fails_the_batch_and_nothing_else(self, backend: Backend, tmp_path: Path) -> None:
        context = completed(backend, tmp_path, onnx_models.gathering())
        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            with pytest.raises(Internal, match=r"^onnx runtime error 2: .*Gather.*out of"):
                run(instance, context, INDEX=np.array([[9]]))
            assert run(instance, context, INDEX=np.array([[0]]))["DOUBLED"].tolist() == [[0]]

    def test_an_output_that_lost_the_batch(self, backend: Backend, tmp_path: Path) -> None:
        context = completed(backend, tmp_path, onnx_models.first_row())
        one = request_of(context.config, {"INPUT": np.ones((1, 2), np.float32)})
        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            with pytest.raises(Internal, match="expected first dimension 2: the batch size"):
                instance.execute(one, one)

    def test_a_session_option_that_the_runtime_refuses(self, backend: Backend, tmp_path: Path) -> None:
        config = msgspec.structs.replace(BARE, parameters={"session.load_model_format": ModelParameter(string_value="ORT")})
        with pytest.raises(Internal, match=r"^onnx runtime error \d+: "):
            completed(backend, tmp_path, onnx_models.matmul(), config)

    def test_a_missing_operator_library(self, backend: Backend, tmp_path: Path) -> None:
        config = msgspec.structs.replace(BARE, model_operations=ModelOperations(op_library_filename=("libnone.so",)))
        with pytest.raises(Internal, match=r"^onnx runtime error 1: Failed to load library libnone\.so"):
            completed(backend, tmp_path, onnx_models.matmul(), config)
        (tmp_path / "m" / "libnone.so").write_bytes(b"no library")
        inside = re.escape(str(tmp_path / "m" / "libnone.so"))
        with pytest.raises(Internal, match=f"^onnx runtime error 1: Failed to load library {inside}"):
            completed(backend, tmp_path, onnx_models.matmul(), config)

    def test_a_gpu_instance_without_a_gpu_runtime(self, backend: Backend, tmp_path: Path) -> None:
        if InstanceKind.KIND_GPU in backend.capabilities.devices:
            pytest.skip("this ONNX Runtime has CUDA")
        group = InstanceGroup(name="m_0", kind=InstanceKind.KIND_GPU, gpus=(0,), count=1)
        context = completed(backend, tmp_path, onnx_models.matmul(), msgspec.structs.replace(BARE, instance_group=(group,)))
        with HostedModel(backend, context) as model, pytest.raises(Unsupported, match=r"^GPU instances not supported"):
            model.instance(InstancePlacement(name="m_0", kind=InstanceKind.KIND_GPU))


def test_accelerators_for_gpus_are_named_when_there_is_no_gpu_instance(backend: Backend, tmp_path: Path) -> None:
    logged: list[tuple[str, str]] = []
    policy = ExecutionAccelerators(gpu_execution_accelerator=(ExecutionAccelerator(name="tensorrt"),))
    config = msgspec.structs.replace(BARE, optimization=Optimization(execution_accelerators=policy))
    context = completed(backend, tmp_path, onnx_models.matmul(), config)
    context = msgspec.structs.replace(context, log=lambda level, message: logged.append((level, message)))
    HostedModel(backend, context).close()
    assert ("warning", "model 'm': gpu_execution_accelerator (tensorrt) has no effect without an instance on a GPU") in logged


def test_completion_logs_its_batch_size(tmp_path: Path) -> None:
    logged: list[str] = []
    backend = create(BackendSettings(name="onnxruntime", config={"default-max-batch-size": "16"}))
    context = onnx_models.write(tmp_path, onnx_models.matmul(), BARE)
    context = msgspec.structs.replace(context, log=lambda level, message: logged.append(f"{level} {message}"))
    assert backend.auto_complete(context).max_batch_size == 16
    assert any(line.startswith("warning autofilled max_batch_size to 16 for model 'm'") for line in logged)


@pytest.mark.parametrize(
    "parameters",
    [
        {"intra_op_thread_count": "1", "inter_op_thread_count": "1", "execution_mode": "1"},
        {"enable_mem_arena": "0", "enable_mem_pattern": "0"},
        {"memory.enable_memory_arena_shrinkage": "cpu:0"},
        {"session.intra_op.allow_spinning": "0", "session.use_device_allocator_for_initializers": "1"},
    ],
)
@pytest.mark.parametrize("level", [-1, 0, 1, 2])
def test_models_run_with_every_option(backend: Backend, tmp_path: Path, parameters: dict[str, str], level: int) -> None:
    config = msgspec.structs.replace(
        BARE,
        parameters={key: ModelParameter(string_value=text) for key, text in parameters.items()},
        optimization=Optimization(graph=OptimizationGraph(level=level)),
    )
    context = completed(backend, tmp_path, onnx_models.matmul(), config)
    with HostedModel(backend, context) as model:
        assert run(model.instance(ON_CPU), context, INPUT=np.ones((1, 3), np.float32))["OUTPUT"].tolist() == [[9, 12]]


def test_a_run_option_that_the_runtime_refuses_fails_the_request(backend: Backend, tmp_path: Path) -> None:
    config = msgspec.structs.replace(
        BARE, parameters={"memory.enable_memory_arena_shrinkage": ModelParameter(string_value="moon:0")}
    )
    context = completed(backend, tmp_path, onnx_models.matmul(), config)
    with HostedModel(backend, context) as model, pytest.raises(Internal, match=r"onnx runtime error 2: .*moon"):
        run(model.instance(ON_CPU), context, INPUT=np.ones((1, 3), np.float32))


def test_a_closed_instance_and_an_unloaded_model_let_the_session_go(backend: Backend, tmp_path: Path) -> None:
    context = completed(backend, tmp_path, onnx_models.matmul())
    model = backend.load(context)
    instance = model.create_instance(ON_CPU)
    session = weakref.ref(model.session(ON_CPU))  # type: ignore[attr-defined]  # looking inside: what sharing means
    assert session() is not None
    other = model.create_instance(ON_CPU)
    instance.close()
    other.close()
    model.unload()
    gc.collect()
    assert session() is None
    with pytest.raises(Internal, match="closed"):
        instance.execute(batch_of([request_of(context.config, {"INPUT": np.ones((1, 3), np.float32)})]))


def test_bf16_memory_outlives_the_session(backend: Backend, tmp_path: Path) -> None:
    context = completed(backend, tmp_path, onnx_models.bf16_sum())
    inputs = {"A": np.ones((1, 2), ml_dtypes.bfloat16), "B": np.full((1, 2), 2, np.float32)}
    with HostedModel(backend, context) as model:
        outputs = run(model.instance(ON_CPU), context, **inputs)
    gc.collect()
    assert outputs["SUM"].dtype == ml_dtypes.bfloat16
    assert outputs["SUM"].astype(float).tolist() == [[3, 3]]


def test_onnxruntime_is_imported_with_the_first_model_only() -> None:
    program = (
        "import sys; from tpy_data.registry import BackendRegistry; r = BackendRegistry(); r.available(); "
        "import tpy_backends.onnxruntime; assert 'onnxruntime' not in sys.modules; "
        "r.get('onnxruntime'); assert 'onnxruntime' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_one_thread_pool_for_all_sessions(tmp_path: Path) -> None:
    """In a process of its own, because the pool is the process's."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(onnx_models.matmul())
    program = """
import os, sys
from pathlib import Path
from tpy.backend import BackendSettings, ModelContext
from tpy.config import ModelConfig
from tpy_backends.onnxruntime import create
from tpy_backends.onnxruntime.session import from_runtime, to_runtime
from tpy.errors import Internal
config = {"enable-global-threadpool": "1", "intra_op_thread_count": "4"}
backend = create(BackendSettings(name="onnxruntime", config=config))
root = Path(sys.argv[1])
context = ModelContext(name="m", version=1, generation=1, config=ModelConfig(name="m"), model_directory=root,
                       version_directory=root / "1")
def threads():
    return len(os.listdir("/proc/self/task"))
before = threads()
models = [backend.load(ModelContext(name="m", version=1, generation=1, config=backend.auto_complete(context),
                                    model_directory=root, version_directory=root / "1")) for _ in range(3)]
assert threads() - before <= 3, threads() - before
try:
    create(BackendSettings(name="onnxruntime", config=config))
except Internal as error:
    assert "already been created" in str(error), error
else:
    raise SystemExit("the pool was made twice")
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "m")], check=True, timeout=60)
