"""Parameters of models: what they change, and what is said of those that change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tpy.backend import Backend, HostPolicy, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.errors import InvalidArgument, Unsupported
from tpy.messages import DataType
from tpy.testing import HostedModel
from tpy.testing.resources import measure
from tpy_backends.pytorch.signature import ModuleInput, ModuleOutput, ModuleSignature

torch = pytest.importorskip("torch", reason="needs PyTorch: make setup-torch")

from tests.backends.pytorch import models  # noqa: E402  # imports torch
from tests.backends.pytorch.models import Log, config, context_of, inputs, outputs, run  # noqa: E402
from tpy_backends.pytorch import model as model_module  # noqa: E402
from tpy_backends.pytorch.archive import FileKind  # noqa: E402
from tpy_backends.pytorch.model import INTEROP_THREADS, SETTERS, ProcessSettings  # noqa: E402
from tpy_backends.pytorch.settings import PyTorchModelSettings, model_settings, without_meaning  # noqa: E402

ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)


class Seen(msgspec.Struct, frozen=True):
    """The settings in which a program is run."""

    threads: int
    inference_mode: bool
    gradients: bool
    optimised: bool


class Asking:
    """In place of a program: looks at how it is run."""

    signature = ModuleSignature(inputs=(ModuleInput(name="x"),), outputs=(ModuleOutput(),))
    writes_inputs = keeps_outputs = False

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def run(self, values: Any) -> list[Any]:
        """Gives what it was given, after work that threads share."""
        torch.tanh(torch.ones(1_000_000))
        self.seen.append(
            Seen(
                torch.get_num_threads(),
                torch.is_inference_mode_enabled(),
                torch.is_grad_enabled(),
                torch._C._get_graph_executor_optimize(),
            )
        )
        return [values[0]]


@pytest.fixture(scope="module")
def backend() -> Any:
    backend = models.make_backend()
    yield backend
    backend.close()


def asking(**parameters: str) -> ModelConfig:
    return config(
        input=inputs(("x", DataType.FP32, (1,))),
        output=outputs(("OUTPUT__0", DataType.FP32, (1,))),
        parameters=models.parameters(**parameters),
    )


def placed(root: Path, model_config: ModelConfig, log: Log | None = None) -> ModelContext:
    """The model on disk."""
    context = context_of(root, model_config, log)
    models.save_script(models.Writing(), context.version_directory / "model.pt")
    return context


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asking:
    program = Asking()
    monkeypatch.setattr(model_module, "ScriptProgram", lambda path, name, device: program)
    return program


def ask(backend: Backend, root: Path, asked: Asking, placement: InstancePlacement = ON_CPU, **parameters: str) -> Seen:
    context = placed(root, asking(**parameters))
    with HostedModel(backend, context) as model:
        run(model.instance(placement), context, x=np.ones(1, np.float32))
    return asked.seen[-1]


class TestThreads:
    def test_each_model_has_its_own_count(self, backend: Backend, tmp_path: Path, asked: Asking) -> None:
        default = torch.get_num_threads()
        for number, (given, expected) in enumerate([("3", 3), ("1", 1), ("0", default), ("-1", default)]):
            assert ask(backend, tmp_path / str(number), asked, INTRA_OP_THREAD_COUNT=given).threads == expected
        assert ask(backend, tmp_path / "other", asked, NUM_THREADS="4").threads == 4
        assert ask(backend, tmp_path / "none", asked).threads == default

    def test_instances_side_by_side_keep_theirs(self, backend: Backend, tmp_path: Path, asked: Asking) -> None:
        """The one with three threads makes two more when it works, the other none, whoever was created last."""
        contexts = [placed(tmp_path / count, asking(INTRA_OP_THREAD_COUNT=count)) for count in ("1", "3", "1")]
        one_row = np.ones(1, np.float32)
        with (
            HostedModel(backend, contexts[0]) as first,
            HostedModel(backend, contexts[1]) as second,
            HostedModel(backend, contexts[2]) as third,
        ):
            instances = [model.instance(ON_CPU) for model in (first, second, third)]
            made = []
            for instance, context in zip(instances, contexts, strict=True):
                before = measure().native_threads
                run(instance, context, x=one_row)
                made.append(measure().native_threads - before)
        assert made == [0, 2, 0]

    def test_as_many_as_cores_of_the_host_policy(self, backend: Backend, tmp_path: Path, asked: Asking) -> None:
        placement = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU, host=HostPolicy(cpu_cores=(0,)))
        assert ask(backend, tmp_path, asked, placement).threads == 1


class TestModes:
    @pytest.mark.parametrize(
        ("given", "on"), [({}, True), ({"INFERENCE_MODE": "true"}, True), ({"INFERENCE_MODE": "false"}, False)]
    )
    def test_inference_mode(self, backend: Backend, tmp_path: Path, asked: Asking, given: dict[str, str], on: bool) -> None:
        seen = ask(backend, tmp_path, asked, **given)
        assert (seen.inference_mode, seen.gradients) == (on, False)

    @pytest.mark.parametrize(("given", "optimised"), [({}, True), ({"DISABLE_OPTIMIZED_EXECUTION": "true"}, False)])
    def test_optimised_execution(
        self, backend: Backend, tmp_path: Path, asked: Asking, given: dict[str, str], optimised: bool
    ) -> None:
        assert ask(backend, tmp_path, asked, **given).optimised is optimised
        assert torch._C._get_graph_executor_optimize()

    def test_an_exported_program_is_compiled_when_it_says_so(self, backend: Backend, tmp_path: Path) -> None:
        """With the backend of torch.compile that needs no C++ compiler."""
        whole = config(
            input=inputs(("first", DataType.FP32, (2,)), ("second", DataType.FP32, (2,))),
            output=outputs(("y", DataType.FP32, (2,))),
            parameters=models.parameters(TORCH_COMPILE_OPTIONAL_PARAMETERS='{"backend": "eager", "fullgraph": true}'),
        )
        context = context_of(tmp_path, whole)
        models.save_exported(models.Difference(), context.version_directory / "model.pt2", torch.zeros(2), torch.zeros(2))
        ones = np.ones(2, np.float32)
        with HostedModel(backend, context) as model, models.quiet():
            instance = model.instance(ON_CPU)
            for factor in (1, 3):
                assert run(instance, context, first=ones * factor, second=ones)["y"].tolist() == [factor - 1] * 2


class TestValues:
    @pytest.mark.parametrize(
        ("key", "text", "message"),
        [
            ("INFERENCE_MODE", "yes", "^failed to convert 'yes' to boolean$"),
            ("ENABLE_WEIGHT_SHARING", "", "^failed to convert '' to boolean$"),
            ("INTRA_OP_THREAD_COUNT", "two", "^failed to convert 'two' to integral number$"),
            ("TORCH_COMPILE_OPTIONAL_PARAMETERS", "{", "of model 'm' is not JSON: "),
            ("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{"model": 1}', "without 'model'$"),
            ("TORCH_COMPILE_OPTIONAL_PARAMETERS", "[]", "must be a JSON object of arguments of torch.compile"),
        ],
    )
    def test_wrong_values(self, key: str, text: str, message: str) -> None:
        with pytest.raises(InvalidArgument, match=message):
            model_settings(asking(**{key: text}))

    def test_right_values(self) -> None:
        given = asking(
            DISABLE_OPTIMIZED_EXECUTION="TRUE",
            INFERENCE_MODE="off",
            ENABLE_WEIGHT_SHARING="1",
            DISABLE_CUDNN="on",
            ENABLE_CACHE_CLEANING="true",
            INTER_OP_THREAD_COUNT="2",
            NUM_INTEROP_THREADS="9",
            ENABLE_JIT_PROFILING="false",
            TORCH_COMPILE_OPTIONAL_PARAMETERS="",
            something_else="x",
        )
        assert model_settings(given) == PyTorchModelSettings(
            interop_threads=2,
            optimized_execution=False,
            inference_mode=False,
            weight_sharing=True,
            cudnn=False,
            cache_cleaning=True,
            jit_switches={"ENABLE_JIT_PROFILING": False},
            compile_options={},
        )

    def test_what_changes_nothing_is_named(self, backend: Backend, tmp_path: Path) -> None:
        keys = ("DISABLE_CUDNN", "ENABLE_CACHE_CLEANING", "ENABLE_JIT_EXECUTOR", "TORCH_COMPILE_OPTIONAL_PARAMETERS")
        whole = asking(**dict.fromkeys(keys[:3], "true"), TORCH_COMPILE_OPTIONAL_PARAMETERS="{}", INFERENCE_MODE="true")
        assert without_meaning(whole, FileKind.TORCH_SCRIPT, on_gpu=True) == [keys[3]]
        assert without_meaning(whole, FileKind.EXPORTED_PROGRAM, on_gpu=False) == [keys[2], *keys[:2]]
        assert without_meaning(whole, FileKind.AOT_PACKAGE, on_gpu=True) == [keys[2], keys[3]]
        log = Log()
        context = placed(tmp_path, asking(DISABLE_CUDNN="true", ENABLE_CACHE_CLEANING="false"), log)
        backend.load(context).unload()
        assert log.warnings() == ["model 'm': parameters DISABLE_CUDNN, ENABLE_CACHE_CLEANING have no effect on this TorchScript"]


class TestWholeProcess:
    def test_the_first_model_sets_what_there_is_once(self) -> None:
        set_to: list[bool] = []
        process = ProcessSettings({"ENABLE_JIT_PROFILING": set_to.append})
        log = Log()
        for name, value in (("a", False), ("b", False), ("c", True)):
            process.apply(name, PyTorchModelSettings(jit_switches={"ENABLE_JIT_PROFILING": value}), log)
        assert set_to == [False]
        assert log.warnings() == [
            "model 'c': ENABLE_JIT_PROFILING True has no effect: it holds for the whole process, where model 'a' set it to False"
        ]

    def test_what_pytorch_refuses_is_a_warning(self) -> None:
        def refuse(count: int) -> None:
            raise RuntimeError("parallel work has started")

        log = Log()
        ProcessSettings({INTEROP_THREADS: refuse}).apply("a", PyTorchModelSettings(interop_threads=2), log)
        assert log.warnings() == ["model 'a': INTER_OP_THREAD_COUNT 2 has no effect: parallel work has started"]

    def test_every_setting_is_taken_by_pytorch(self) -> None:
        """With the values that it has already, or has by default."""
        switches = {key: True for key in SETTERS if key != INTEROP_THREADS}
        log = Log()
        ProcessSettings().apply("a", PyTorchModelSettings(jit_switches=switches), log)
        assert log.warnings() == []


def test_an_instance_on_a_gpu_that_is_not_there(backend: Backend, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert InstanceKind.KIND_GPU not in backend.capabilities.devices
    placed_model = backend.load(placed(tmp_path, asking()))
    with pytest.raises(Unsupported, match=r"^GPU instances not supported: the installed PyTorch \(.*\) finds no CUDA device"):
        placed_model.create_instance(InstancePlacement(name="m_0", kind=InstanceKind.KIND_GPU))
