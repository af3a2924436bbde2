"""Models of TensorFlow: signatures, frozen graphs, what is completed, parameters, sessions, and what goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.hosted import completed, context_of, inputs, outputs, parameters, run
from tpy.backend import Backend, BackendSettings, HostPolicy, InstancePlacement, ModelContext
from tpy.config.model_config import (
    DynamicBatching,
    ExecutionAccelerator,
    ExecutionAccelerators,
    InstanceKind,
    ModelOperations,
    Optimization,
    TensorReshape,
)
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable, Unsupported
from tpy.messages import DataType
from tpy.testing import HostedModel, batch_of, request_of

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow: make test-backends")

from tests.backends.tensorflow import models  # noqa: E402  # imports tensorflow
from tests.backends.tensorflow.models import config  # noqa: E402
from tpy_backends.tensorflow import create  # noqa: E402
from tpy_backends.tensorflow.graph import LoadedGraph  # noqa: E402
from tpy_backends.tensorflow.model import TensorFlowModel  # noqa: E402
from tpy_backends.tensorflow.settings import TensorFlowConfig, model_settings  # noqa: E402

ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
GATHERING: dict[str, Any] = {
    "max_batch_size": 4,
    "input": inputs(("INDEX", DataType.INT64, (1,))),
    "output": outputs(("DOUBLED", DataType.INT64, (1,)), ("ROWS", DataType.FP32, (1, 2))),
}
GRAPH: dict[str, Any] = {
    "platform": "tensorflow_graphdef",
    "max_batch_size": 4,
    "input": inputs(("x", DataType.FP32, (2,))),
    "output": outputs(("y", DataType.FP32, (2,))),
}


@pytest.fixture(scope="module")
def backend() -> Backend:
    return create(BackendSettings(name="tensorflow"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a SavedModel with two signatures."""
    folder = tmp_path_factory.mktemp("saved") / "model.savedmodel"
    models.save_gathering(folder)
    return folder


def gathering(root: Path, saved: Path, name: str = "m", **fields: Any) -> ModelContext:
    context = context_of(root, config(name, **fields))
    (context.version_directory / "model.savedmodel").symlink_to(saved)
    return context


def graph(root: Path, **fields: Any) -> ModelContext:
    context = context_of(root, config(**fields))
    models.save_graph(context.version_directory / "model.graphdef")
    return context


def rows(count: int) -> np.ndarray[Any, Any]:
    return np.arange(count * 2, dtype=np.float32).reshape(count, 2)


class TestSignatures:
    def test_the_default_signature_is_completed(self, backend: Backend, tmp_path: Path, saved: Path) -> None:
        found = completed(backend, gathering(tmp_path, saved)).config
        assert found.max_batch_size == 4
        assert found.dynamic_batching == DynamicBatching()
        assert found.input == GATHERING["input"]
        assert found.output == GATHERING["output"]

    def test_another_one_by_parameter(self, backend: Backend, tmp_path: Path, saved: Path) -> None:
        context = completed(backend, gathering(tmp_path, saved, parameters=parameters(TF_SIGNATURE_DEF="texts")))
        assert [(each.name, each.dims, each.reshape) for each in context.config.input] == [
            ("TEXT", (1,), TensorReshape(shape=()))
        ]
        with HostedModel(backend, context) as model:
            given = run(model.instance(ON_CPU), context, TEXT=np.array([b"abc"], object))
            assert given["LENGTH"].tolist() == [3]

    def test_the_only_one_has_any_name(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, config())
        models.save_adding(context.version_directory / "model.savedmodel", plus="scalar")
        assert completed(backend, context).config.input == inputs(("x", DataType.FP32, (1,)))

    def test_several_without_a_default_are_listed_with_their_inputs(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, config())
        models.save_adding(context.version_directory / "model.savedmodel", one="scalar", two="bf16")
        with pytest.raises(InvalidArgument) as refusal:
            backend.auto_complete(context)
        assert str(refusal.value) == (
            "unable to load model 'm', its SavedModel has no signature 'serving_default' (TF_SIGNATURE_DEF); it has: "
            "one(x FP32[]); two(a BF16[-1,2], b FP32[-1,2])"
        )

    def test_one_that_is_not_there(self, backend: Backend, tmp_path: Path, saved: Path) -> None:
        context = gathering(tmp_path, saved, **GATHERING, parameters=parameters(TF_SIGNATURE_DEF="other"))
        with pytest.raises(InvalidArgument, match=r"no signature 'other'.*it has: serving_default\(INDEX INT64\[-1,1\]\); texts"):
            backend.load(context)

    def test_a_tag_that_is_not_there(self, backend: Backend, tmp_path: Path, saved: Path) -> None:
        context = gathering(tmp_path, saved, **GATHERING, parameters=parameters(TF_GRAPH_TAG="train"))
        with pytest.raises(InvalidArgument, match=r"no graph with tag 'train' \(TF_GRAPH_TAG\); tags of its graphs: serve"):
            backend.load(context)

    def test_unknown_ranks_are_left_to_the_configuration(self, backend: Backend, tmp_path: Path) -> None:
        pair = {"input": inputs(("x", DataType.FP32, (2,))), "output": outputs(("y", DataType.FP32, (2,)))}
        context = context_of(tmp_path, config(**pair, max_batch_size=4))
        models.save_adding(context.version_directory / "model.savedmodel", serving_default="any_rank")
        with HostedModel(backend, context) as model:
            assert run(model.instance(ON_CPU), context, x=rows(2))["y"].tolist() == (rows(2) * 2).tolist()
        bare = context_of(tmp_path, config("bare"))
        models.save_adding(bare.version_directory / "model.savedmodel", serving_default="any_rank")
        with pytest.raises(InvalidArgument, match="the model does not say how many dimensions x, y have"):
            backend.auto_complete(bare)


class TestFrozenGraphs:
    def test_the_outputs_of_the_configuration_say_which_inputs_are_needed(self, backend: Backend, tmp_path: Path) -> None:
        context = graph(tmp_path, **GRAPH)
        with HostedModel(backend, context) as model:
            assert run(model.instance(ON_CPU), context, x=rows(2))["y"].tolist() == (rows(2) * 2).tolist()

    def test_an_input_that_is_not_fed_is_refused_at_load(self, backend: Backend, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="configuration expects 1 inputs, model provides 2"):
            backend.load(graph(tmp_path, **{**GRAPH, "output": outputs(("z", DataType.FP32, (2,)))}))

    def test_tensor_names_may_have_their_number(self, backend: Backend, tmp_path: Path) -> None:
        fields = {"input": inputs(("x:0", DataType.FP32, (2,))), "output": outputs(("y:0", DataType.FP32, (2,)))}
        context = graph(tmp_path, **{**GRAPH, **fields})
        with HostedModel(backend, context) as model:
            assert run(model.instance(ON_CPU), context, **{"x:0": rows(1)})["y:0"].tolist() == [[0, 2]]

    def test_it_is_completed_from_its_placeholders_and_ends(self, backend: Backend, tmp_path: Path) -> None:
        found = completed(backend, graph(tmp_path, platform="tensorflow_graphdef")).config
        assert {each.name for each in found.input} == {"x", "w"}
        assert [each.name for each in found.output] == ["z"]

    def test_init_ops(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, config(**GRAPH, parameters=parameters(TF_INIT_OPS_FILE="init_ops.json")))
        models.save_counter_graph(context.version_directory / "model.graphdef")
        with pytest.raises(Unavailable, match=r"unable to find the file 'init_ops.json' \(TF_INIT_OPS_FILE\)"):
            backend.load(context)
        (context.model_directory / "init_ops.json").write_text('{"ops": []}')
        with pytest.raises(InvalidArgument, match="is not a JSON object with a list 'init_ops'"):
            backend.load(context)
        (context.version_directory / "init_ops.json").write_text('{"init_ops": ["start"]}')
        with HostedModel(backend, context) as model:
            assert run(model.instance(ON_CPU), context, x=rows(1))["y"].tolist() == [[5, 6]]

    def test_a_tensor_that_is_not_there(self, backend: Backend, tmp_path: Path) -> None:
        fed = inputs(("x", DataType.FP32, (2,)), ("w", DataType.FP32, (2,)))
        context = graph(tmp_path, **{**GRAPH, "input": fed, "output": outputs(("q", DataType.FP32, (2,)))})
        with pytest.raises(InvalidArgument, match="unexpected inference output 'q', allowed outputs are: z"):
            backend.load(context)


class TestSessions:
    def placements(self) -> list[InstancePlacement]:
        return [InstancePlacement(name=f"m_{number}", kind=InstanceKind.KIND_CPU) for number in range(3)]

    @pytest.mark.parametrize(("share", "sessions"), [(None, 1), ("1", 3), ("2", 2), ("9", 1)])
    def test_how_many_instances_share_one(
        self, backend: Backend, tmp_path: Path, saved: Path, share: str | None, sessions: int
    ) -> None:
        given = {} if share is None else parameters(MAX_SESSION_SHARE_COUNT=share)
        model = TensorFlowModel(gathering(tmp_path, saved, **GATHERING, parameters=given), TensorFlowConfig())
        model.prepare()
        graphs = [model.graph(placement) for placement in self.placements()]
        assert len({id(each.session) for each in graphs}) == sessions
        model.unload()

    @pytest.mark.parametrize("share", ["1", "2"])
    def test_instances_that_come_and_go_load_no_session_more_each_time(
        self, backend: Backend, tmp_path: Path, saved: Path, share: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded, closed = list[LoadedGraph](), list[LoadedGraph]()
        load, close = TensorFlowModel.load, LoadedGraph.close

        def counted_load(model: TensorFlowModel, placement: InstancePlacement) -> LoadedGraph:
            loaded.append(load(model, placement))
            return loaded[-1]

        def counted_close(graph: LoadedGraph) -> None:
            closed.append(graph)
            close(graph)

        monkeypatch.setattr(TensorFlowModel, "load", counted_load)
        monkeypatch.setattr(LoadedGraph, "close", counted_close)
        context = gathering(tmp_path, saved, **GATHERING, parameters=parameters(MAX_SESSION_SHARE_COUNT=share))
        with HostedModel(backend, context) as model:
            for _ in range(5):
                instance = model.instance(ON_CPU)
                assert run(instance, context, INDEX=np.array([[1]]))["DOUBLED"].tolist() == [[2]]
                instance.close()
            assert (len(loaded), len(closed)) == (1, 0)
            several = [model.instance(placement) for placement in self.placements()]
            for instance in several:
                instance.close()
            assert len(loaded) - len(closed) == 1
        assert len(loaded) == len(closed)

    def test_a_run_leaves_the_interpreter_to_others(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(
            tmp_path,
            config(
                platform="tensorflow_graphdef",
                input=inputs(("x", DataType.FP32, (-1, -1))),
                output=outputs(("y", DataType.FP32, (-1, -1))),
            ),
        )
        with tf.Graph().as_default() as made:
            y = tf.compat.v1.placeholder(tf.float32, [None, None], name="x")
            for _ in range(30):
                y = tf.matmul(y, y) * 1e-3
            tf.identity(y, name="y")
            (context.version_directory / "model.graphdef").write_bytes(made.as_graph_def().SerializeToString())
        with HostedModel(backend, context) as model:
            request = request_of(context.config, {"x": np.ones((600, 600), np.float32)})
            running = model.instance(ON_CPU).start(batch_of([request]))
            turns = 0
            while not running.done():
                turns += 1
            assert running.result()[0].error is None
            assert turns > 100

    def test_threads(self, saved: Path, tmp_path: Path) -> None:
        given = parameters(TF_NUM_INTRA_THREADS="7", TF_NUM_INTER_THREADS="3")
        model = TensorFlowModel(gathering(tmp_path, saved, **GATHERING, parameters=given), TensorFlowConfig())
        before = native_threads()
        model.prepare()
        assert len(native_threads() - before) >= 8  # those of earlier sessions may end meanwhile
        model.unload()

    def test_more_threads_than_can_be_meant(self) -> None:
        with pytest.raises(
            InvalidArgument, match=r"'TF_NUM_INTRA_THREADS' of model 'm' asks for 2000000000 threads; expected at"
        ):
            model_settings(config(parameters=parameters(TF_NUM_INTRA_THREADS="2000000000")))

    def test_a_host_policy_bounds_the_threads(self) -> None:
        settings = model_settings(config())
        assert settings.within(HostPolicy(cpu_cores=(2, 3)).cpu_cores).intra_threads == 2
        assert settings.within(()).intra_threads == 0


def native_threads() -> set[str]:
    """The ids of all threads of this process, those without Python too."""
    return {entry.name for entry in Path("/proc/self/task").iterdir()}


class TestWhatDoesNotFit:
    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            (
                {"input": inputs(("INDEX", DataType.FP32, (1,)))},
                "expects datatype TYPE_FP32 for input 'INDEX', model provides TYPE_INT64",
            ),
            ({"input": inputs(("INDEX", DataType.INT64, (2,)))}, r"expects 2 dimensions \(shape \[-1,1\]\).*shape \[-1,2\]"),
            ({"input": inputs(("index", DataType.INT64, (1,)))}, "unexpected inference input 'index', allowed inputs are: INDEX"),
            ({"platform": "tensorflow_lite"}, "platform tensorflow_lite not supported for TensorFlow model 'm'"),
            ({"parameters": parameters(MAX_SESSION_SHARE_COUNT="0")}, "'MAX_SESSION_SHARE_COUNT' must be positive number"),
            ({"parameters": parameters(TF_NUM_INTRA_THREADS="-1")}, "'TF_NUM_INTRA_THREADS' must be non-negative number"),
            ({"parameters": parameters(TF_NUM_INTER_THREADS="two")}, "failed to convert 'two' to integral number"),
            ({"parameters": parameters(TF_NUM_INTER_THREADS="9999999999")}, "failed to convert '9999999999' to integral number"),
            ({"parameters": parameters(TF_USE_PER_SESSION_THREADS="maybe")}, "failed to convert 'maybe' to boolean"),
            (
                {"model_operations": ModelOperations(op_library_filename=("no_such.so",))},
                "unable to load model 'm': no_such.so: cannot open shared object file",
            ),
        ],
    )
    def test_configuration_and_model_are_both_shown(
        self, backend: Backend, tmp_path: Path, saved: Path, changes: dict[str, Any], text: str
    ) -> None:
        with pytest.raises(TpyError, match=text):
            backend.load(gathering(tmp_path, saved, **{**GATHERING, **changes}))

    @pytest.mark.parametrize(
        ("side", "name", "text"),
        [
            ("cpu", "x", "CPU Execution Accelerator is not supported in TensorFlow backend"),
            ("gpu", "x", "unknown Execution Accelerator 'x' is requested"),
            ("gpu", "tensorrt", "tensorrt is not supported for TensorFlow models; convert the model to ONNX"),
        ],
    )
    def test_accelerators(self, side: str, name: str, text: str) -> None:
        accelerators = ExecutionAccelerators(**{f"{side}_execution_accelerator": (ExecutionAccelerator(name=name),)})
        with pytest.raises((InvalidArgument, Unsupported), match=text):
            model_settings(config(optimization=Optimization(execution_accelerators=accelerators)))

    def test_a_missing_operator_names_the_setting(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, config(**GRAPH))
        definition = tf.compat.v1.GraphDef()
        definition.node.add(name="x", op="Placeholder").attr["dtype"].type = 1
        definition.node.add(name="y", op="OperatorOfNobody", input=["x"])
        (context.version_directory / "model.graphdef").write_bytes(definition.SerializeToString())
        with pytest.raises(Internal, match=r"Op type not registered 'OperatorOfNobody'.*model_operations \{ op_library_filename"):
            backend.load(context)

    @pytest.mark.parametrize("content", [b"no graph", b""])
    def test_a_file_that_is_no_graph(self, backend: Backend, tmp_path: Path, content: bytes) -> None:
        for given in (config(**GRAPH), config()):
            context = context_of(tmp_path, given)
            (context.version_directory / "model.graphdef").write_bytes(content)
            with pytest.raises(Internal, match=r"'model.graphdef' is not a TensorFlow graph"):
                backend.load(completed(backend, context))

    def test_a_folder_that_is_no_saved_model(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, config(**GATHERING))
        folder = context.version_directory / "model.savedmodel"
        folder.mkdir()
        with pytest.raises(Unavailable, match=r"is not a SavedModel, for model instance 'm': it holds no saved_model.pb"):
            backend.load(context)
        (folder / "saved_model.pb").write_bytes(b"no model")
        with pytest.raises(Internal, match="unable to read the SavedModel of model 'm'"):
            backend.load(context)

    def test_missing_weights(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, config(**GATHERING))
        models.save_gathering(context.version_directory / "model.savedmodel")
        for file in (context.version_directory / "model.savedmodel" / "variables").iterdir():
            file.unlink()
        with pytest.raises(Internal, match=r"unable to load model 'm': .*variables"):
            backend.load(context)

    def test_memory_that_is_short_while_loading_costs_the_others_nothing(self, backend: Backend, tmp_path: Path) -> None:
        other = graph(tmp_path, **GRAPH)
        context = context_of(tmp_path, config("huge", **GRAPH, parameters=parameters(TF_INIT_OPS_FILE="init_ops.json")))
        models.save_huge_graph(context.version_directory / "model.graphdef")
        (context.model_directory / "init_ops.json").write_text('{"init_ops": ["start"]}')
        with HostedModel(backend, other) as model:
            instance = model.instance(ON_CPU)
            with pytest.raises(Internal, match=r"unable to load model 'huge': .*OOM when allocating tensor"):
                backend.load(context)
            assert run(instance, other, x=rows(2))["y"].tolist() == (rows(2) * 2).tolist()
