"""Networks of OpenVINO: what is completed, shapes and batches, properties, state, and what goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.hosted import Log, completed, context_of, inputs, outputs, parameters, run
from tpy.backend import Backend, BackendSettings, InstancePlacement, ModelContext
from tpy.config.model_config import DynamicBatching, InstanceKind
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable
from tpy.messages import DataType
from tpy.testing import HostedModel, batch_of, request_of

openvino = pytest.importorskip("openvino", reason="needs OpenVINO: make test-backends")

from openvino import opset13 as ops  # noqa: E402

from tests.backends import onnx_models  # noqa: E402
from tests.backends.openvino import models  # noqa: E402  # imports openvino
from tests.backends.openvino.models import config  # noqa: E402
from tpy_backends.openvino import create  # noqa: E402
from tpy_backends.openvino.model import OpenVinoModel  # noqa: E402

ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
NET = config(input=inputs(("x", DataType.FP32, (2,))), output=outputs(("y", DataType.FP32, (2,))), max_batch_size=4)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return create(BackendSettings(name="openvino"))


def doubling(root: Path, model_config: Any, shape: tuple[int, ...] = (-1, 2), log: Log | None = None) -> ModelContext:
    """A network that doubles x, with an input of that shape."""
    context = context_of(root, model_config, log)
    models.save(
        context.version_directory / "model.xml",
        {"x": (shape, np.float32)},
        lambda x: {"y": ops.multiply(x, models.constant(2, np.float32))},
    )
    return context


def rows(count: int, width: int = 2) -> np.ndarray[Any, Any]:
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


class TestCompletion:
    def test_an_open_first_dimension_is_the_batch(self, backend: Backend, tmp_path: Path) -> None:
        found = completed(backend, doubling(tmp_path, config(), (-1, 3, -1))).config
        assert found.max_batch_size == 4
        assert found.dynamic_batching == DynamicBatching()
        assert found.input == inputs(("x", DataType.FP32, (3, -1)))
        assert found.output == outputs(("y", DataType.FP32, (3, -1)))

    def test_fixed_shapes_do_not_batch(self, backend: Backend, tmp_path: Path) -> None:
        found = completed(backend, doubling(tmp_path, config(), (1, 3))).config
        assert found.max_batch_size == 0
        assert found.input == inputs(("x", DataType.FP32, (1, 3)))

    def test_a_fixed_first_dimension_is_opened_where_the_configuration_batches(self, backend: Backend, tmp_path: Path) -> None:
        context = completed(backend, doubling(tmp_path, config(max_batch_size=8), (1, 2)))
        assert context.config.input == inputs(("x", DataType.FP32, (2,)))
        with HostedModel(backend, context) as model:
            assert run(model.instance(ON_CPU), context, x=rows(3))["y"].tolist() == (rows(3) * 2).tolist()

    def test_an_onnx_file_is_found_without_being_named(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, config(default_model_filename="model.xml"))
        (context.version_directory / "model.onnx").write_bytes(onnx_models.identity())
        context = completed(backend, context)
        assert context.config.input
        with HostedModel(backend, context) as model:
            assert model.instance(ON_CPU) is not None

    def test_unknown_ranks_are_left_to_the_configuration(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, config())
        any_rank = openvino.PartialShape.dynamic()
        node = ops.parameter(any_rank, np.float32, name="x")
        node.output(0).get_tensor().set_names({"x"})
        doubled = ops.add(node, node)
        doubled.output(0).get_tensor().set_names({"y"})
        path = context.version_directory / "model.xml"
        openvino.save_model(openvino.Model([ops.result(doubled)], [node], "m"), path, compress_to_fp16=False)
        with pytest.raises(InvalidArgument, match="does not say how many dimensions x, y have; list the inputs and outputs"):
            backend.auto_complete(context)
        (tmp_path / "given" / "1").mkdir(parents=True)
        given = context_of(tmp_path, config("given", input=NET.input, output=NET.output, max_batch_size=4))
        for file in (path, path.with_suffix(".bin")):
            (given.version_directory / file.name).write_bytes(file.read_bytes())
        with HostedModel(backend, given) as model:
            assert run(model.instance(ON_CPU), given, x=rows(2))["y"].tolist() == (rows(2) * 2).tolist()


class TestBatchesOfOneSize:
    def test_other_sizes_are_refused_with_tritons_advice(self, backend: Backend, tmp_path: Path) -> None:
        fixed = config(**_fields(), parameters=parameters(SKIP_OV_DYNAMIC_BATCHSIZE="yes"))
        context = doubling(tmp_path, fixed, (1, 2))
        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            assert run(instance, context, x=rows(4))["y"].shape == (4, 2)
            with pytest.raises(
                Internal, match=r"expected requests with batch size '4', got '3'.* avoided by setting .*'ENABLE_BATCH_PADDING'"
            ):
                run(instance, context, x=rows(3))

    def test_a_network_that_allows_one_size_only_names_the_way_out(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, NET)
        models.save(
            context.version_directory / "model.xml",
            {"x": ((1, 2), np.float32)},
            lambda x: {"y": ops.add(x, models.constant([[1, 2], [3, 4]], np.float32))},
        )
        with pytest.raises(InvalidArgument, match=r"(?s)tensor 'y'|cannot be given the shapes"):
            backend.load(context)


def _fields() -> dict[str, Any]:
    return {"input": NET.input, "output": NET.output, "max_batch_size": NET.max_batch_size}


class TestSettings:
    def test_reshape_io_layers(self, backend: Backend, tmp_path: Path) -> None:
        wide = config(
            input=inputs(("x", DataType.FP32, (-1, 5))),
            output=outputs(("y", DataType.FP32, (-1, 5))),
            parameters=parameters(RESHAPE_IO_LAYERS="yes"),
        )
        context = doubling(tmp_path, wide, (1, 2))
        with HostedModel(backend, context) as model:
            assert run(model.instance(ON_CPU), context, x=rows(3, 5))["y"].shape == (3, 5)

    @pytest.mark.parametrize(
        ("given", "name", "value"),
        [
            ({"NUM_STREAMS": "2"}, "NUM_STREAMS", 2),
            ({"CPU_THROUGHPUT_STREAMS": "2"}, "NUM_STREAMS", 2),
            ({"INFERENCE_NUM_THREADS": "1"}, "INFERENCE_NUM_THREADS", 1),
            ({"CPU_THREADS_NUM": "1"}, "INFERENCE_NUM_THREADS", 1),
            ({"PERFORMANCE_HINT": "THROUGHPUT"}, "PERFORMANCE_HINT", "THROUGHPUT"),
            ({"HINT_BF16": "YES"}, "INFERENCE_PRECISION_HINT", "bfloat16"),
            ({"ENABLE_CPU_PINNING": "NO"}, "ENABLE_CPU_PINNING", False),
        ],
    )
    def test_properties_reach_openvino(self, tmp_path: Path, given: dict[str, str], name: str, value: object) -> None:
        if value == "bfloat16" and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            pytest.skip("this CPU does not compute with bfloat16: OpenVINO takes f32 in its place")
        context = doubling(tmp_path, config(**_fields(), parameters=parameters(**given)))
        found = OpenVinoModel(context).compiled_for(ON_CPU).get_property(name)
        found = getattr(found, "name", found)
        assert (found.get_type_name() if name == "INFERENCE_PRECISION_HINT" else found) in {value, "bf16"}

    def test_instances_have_a_stream_each(self, tmp_path: Path) -> None:
        import msgspec

        placements = [ON_CPU, InstancePlacement(name="m_1", kind=InstanceKind.KIND_CPU)]
        context = msgspec.structs.replace(doubling(tmp_path, NET), placements=placements)
        assert OpenVinoModel(context).compiled_for(ON_CPU).get_property("NUM_STREAMS") == 2

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"INFERENCE_NUM_THREADS": "many"}, "'INFERENCE_NUM_THREADS' to be a non-negative number, got many"),
            ({"NUM_STREAMS": "some"}, "'NUM_STREAMS' to be a non-negative number or AUTO/NUMA, got SOME"),
            ({"HINT_BF16": "maybe"}, "'HINT_BF16' to be either YES or NO, got maybe"),
            ({"PERFORMANCE_HINT": "SPEED"}, "with PERFORMANCE_HINT=SPEED: Wrong value SPEED ?for property key"),
            ({"TARGET_DEVICE": "TOASTER"}, r"device 'TOASTER' cannot be used \(OpenVINO finds CPU"),
            (
                {"CPU_EXTENSION_PATH": "/nowhere.so"},
                "failed to load the library of operators '/nowhere.so' of model 'm'",
            ),
        ],
    )
    def test_wrong_values(self, backend: Backend, tmp_path: Path, given: dict[str, str], text: str) -> None:
        with pytest.raises(TpyError, match=text):
            backend.load(doubling(tmp_path, config(**_fields(), parameters=parameters(**given))))

    def test_what_a_device_does_not_know_is_named_in_a_warning(self, backend: Backend, tmp_path: Path) -> None:
        log = Log()
        given = parameters(COMPILATION_NUM_THREADS="1", something="else")
        backend.load(doubling(tmp_path, config(**_fields(), parameters=given), log=log)).unload()
        assert log.warnings() == ["model 'm': parameters COMPILATION_NUM_THREADS have no effect on CPU"]

    def test_the_device_may_be_left_to_openvino(self, backend: Backend, tmp_path: Path) -> None:
        context = doubling(tmp_path, config(**_fields(), parameters=parameters(TARGET_DEVICE="AUTO")))
        with HostedModel(backend, context) as model:
            assert run(model.instance(ON_CPU), context, x=rows(1))["y"].tolist() == [[0, 2]]


def test_state_inside_a_network_does_not_pass_from_one_request_to_the_next(backend: Backend, tmp_path: Path) -> None:
    context = context_of(tmp_path, NET)
    node = ops.parameter([-1, 2], np.float32, name="x")
    node.output(0).get_tensor().set_names({"x"})
    kept = ops.read_value(ops.multiply(node, models.constant(0, np.float32)), "kept", np.float32, openvino.PartialShape([-1, 2]))
    total = ops.add(node, kept)
    total.output(0).get_tensor().set_names({"y"})
    network = openvino.Model([ops.result(total)], [ops.assign(total, "kept")], [node], "m")
    openvino.save_model(network, context.version_directory / "model.xml", compress_to_fp16=False)
    with HostedModel(backend, context) as model:
        instance = model.instance(ON_CPU)
        for _ in range(3):
            assert run(instance, context, x=rows(1))["y"].tolist() == [[0, 1]]


class TestWhatDoesNotFit:
    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            (
                {"input": inputs(("x", DataType.INT64, (2,)))},
                "expects datatype TYPE_INT64 for input 'x', model provides TYPE_FP32",
            ),
            ({"output": outputs(("y", DataType.FP32, (3,)))}, r"tensor 'y': .*shape \[-1,2\].*complete shape \[-1,3\]"),
            ({"input": inputs(("z", DataType.FP32, (2,)))}, "unexpected inference input 'z', allowed inputs are: x"),
            ({"output": outputs(("z", DataType.FP32, (2,)))}, "unexpected inference output 'z', allowed outputs are: y"),
        ],
    )
    def test_configuration_and_network_are_both_shown(
        self, backend: Backend, tmp_path: Path, changes: dict[str, Any], text: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=text):
            backend.load(doubling(tmp_path, config(**{**_fields(), **changes})))

    def test_a_missing_file_names_what_there_is(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, NET)
        (context.version_directory / "net.xml").write_text("")
        with pytest.raises(Unavailable, match=r"the folder holds net.xml; rename net.xml, or set default_model_filename"):
            backend.load(context)

    def test_missing_weights(self, backend: Backend, tmp_path: Path) -> None:
        context = doubling(tmp_path, NET)
        (context.version_directory / "model.bin").unlink()
        with pytest.raises(Internal, match=r"openvino error: failed to read 'model.xml' of model 'm'"):
            backend.load(context)


def constants(x: models.Node) -> dict[str, models.Node]:
    """Four petabytes that are calculated when the network is compiled."""
    wide = ops.broadcast(models.constant(1.5, np.float32), models.constant([1 << 30, 1 << 20], np.int64))
    return {"y": ops.add(x, ops.reduce_sum(wide, models.constant([0, 1], np.int64), False))}


def buffers(x: models.Node) -> dict[str, models.Node]:
    """Petabytes for what is between its operators."""
    wide = ops.broadcast(x, models.constant([2, 1 << 30, 1 << 20], np.int64))
    return {"y": ops.reduce_sum(ops.sin(wide), models.constant([1, 2], np.int64), False)}


@pytest.mark.parametrize(
    ("make", "shape", "text"),
    [(constants, [2], "memory is short"), (buffers, [2, 1, 1], r"Failed to allocate \d+ bytes of memory")],
)
def test_memory_that_is_short_while_loading_costs_the_others_nothing(
    backend: Backend, tmp_path: Path, make: Any, shape: list[int], text: str
) -> None:
    other = doubling(tmp_path, NET)
    huge = context_of(tmp_path, config("huge"))
    models.save(huge.version_directory / "model.xml", {"x": (shape, np.float32)}, make)
    with HostedModel(backend, other) as model:
        instance = model.instance(ON_CPU)
        with pytest.raises(Internal, match=f"^openvino error: failed to compile the model for CPU: .*{text}"):
            backend.load(completed(backend, huge))
        assert run(instance, other, x=rows(2))["y"].tolist() == (rows(2) * 2).tolist()


def test_outputs_that_are_not_asked_for_are_not_copied(backend: Backend, tmp_path: Path) -> None:
    context = context_of(
        tmp_path,
        config(
            input=inputs(("INDEX", DataType.INT64, (1,))),
            output=outputs(("DOUBLED", DataType.INT64, (1,)), ("ROWS", DataType.FP32, (1, 2))),
            max_batch_size=4,
        ),
    )
    models.save(context.version_directory / "model.xml", {"INDEX": ([-1, 1], np.int64)}, models.gathering)
    loaded = backend.load(context)
    instance = loaded.create_instance(ON_CPU)
    request = request_of(context.config, {"INDEX": np.array([[1]])}, requested_outputs=("ROWS",))
    result = instance.execute(batch_of([request]))[0]
    assert [tensor.name for tensor in result.outputs] == ["ROWS"]
    instance.close()
    loaded.unload()
