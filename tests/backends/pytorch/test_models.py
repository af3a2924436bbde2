"""Models of PyTorch at work: state, memory, strings, numbers, dicts, sequences, failures, sharing."""

from __future__ import annotations

import dataclasses
import gc
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tpy.backend import Backend, InstancePlacement, ModelContext, SequenceState
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, SequenceBatching
from tpy.config.model_config import SequenceState as StateEntry
from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType
from tpy.testing import HostedModel, batch_of, request_of

torch = pytest.importorskip("torch", reason="needs PyTorch: make setup-torch")

from tests.backends.pytorch import models  # noqa: E402  # imports torch
from tests.backends.pytorch.models import config, context_of, inputs, outputs, run  # noqa: E402
from tpy_backends.pytorch.script import ScriptProgram  # noqa: E402
from tpy_backends.pytorch.tensors import TORCH_OF, to_array, to_tensor  # noqa: E402

ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
PAIR = config(input=inputs(("x", DataType.FP32, (2,))), output=outputs(("OUTPUT__0", DataType.FP32, (2,))))


@pytest.fixture(scope="module")
def backend() -> Any:
    backend = models.make_backend()
    yield backend
    backend.close()


def scripted(root: Path, module: Any, model_config: ModelConfig, log: models.Log | None = None) -> ModelContext:
    context = context_of(root, model_config, log)
    models.save_script(module, context.version_directory / "model.pt")
    return context


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


class TestState:
    def test_each_instance_keeps_its_own(self, backend: Backend, tmp_path: Path) -> None:
        context = scripted(tmp_path, models.Total(), PAIR)
        with HostedModel(backend, context) as model:
            first, second = model.instance(ON_CPU), model.instance(ON_CPU)
            for expected in (1, 2, 3):
                assert run(first, context, x=floats(1, 1))["OUTPUT__0"].tolist() == [expected] * 2
            assert run(second, context, x=floats(1, 1))["OUTPUT__0"].tolist() == [1, 1]

    def test_instances_that_share_weights_share_it(self, backend: Backend, tmp_path: Path) -> None:
        shared = msgspec.structs.replace(PAIR, parameters=models.parameters(ENABLE_WEIGHT_SHARING="true"))
        context = scripted(tmp_path, models.Total(), shared)
        with HostedModel(backend, context) as model:
            first, second = model.instance(ON_CPU), model.instance(ON_CPU)
            run(first, context, x=floats(1, 1))
            assert run(second, context, x=floats(1, 1))["OUTPUT__0"].tolist() == [2, 2]

    def test_an_answer_is_not_changed_by_the_next_execution(self, backend: Backend, tmp_path: Path) -> None:
        """The module returns the very tensor that it keeps."""
        context = scripted(tmp_path, models.Total(), PAIR)
        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            answers = [run(instance, context, x=floats(1, 2))["OUTPUT__0"] for _ in range(3)]
        assert [answer.tolist() for answer in answers] == [[1, 2], [2, 4], [3, 6]]

    def test_a_model_that_writes_its_input_gets_a_copy(self, backend: Backend, tmp_path: Path) -> None:
        context = scripted(tmp_path, models.Writing(), PAIR)
        given = np.frombuffer(floats(1, 2).tobytes(), np.float32)
        with HostedModel(backend, context) as model:
            assert run(model.instance(ON_CPU), context, x=given)["OUTPUT__0"].tolist() == [2, 3]
        assert given.tolist() == [1, 2]

    def test_a_buffer_that_an_exported_program_changes(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, PAIR)
        models.save_exported(models.Total(), context.version_directory / "model.pt2", torch.zeros(2))
        with HostedModel(backend, context) as model:
            instances = [model.instance(ON_CPU) for _ in range(2)]
            answers = [run(instance, context, x=floats(1, 2))["OUTPUT__0"] for instance in instances for _ in range(2)]
        assert [answer.tolist() for answer in answers] == [[1, 2], [2, 4]] * 2


class TestMemory:
    def test_what_can_be_read_is_not_copied(self) -> None:
        for datatype in TORCH_OF:
            array = np.zeros((2, 3), datatype.numpy)
            array.flags.writeable = False
            tensor = to_tensor(array, may_be_written=False)
            assert tensor.dtype is TORCH_OF[datatype]
            assert np.shares_memory(to_array(tensor), array)
            assert to_array(tensor).dtype == array.dtype
            assert not np.shares_memory(to_array(to_tensor(array, may_be_written=True)), array)

    def test_the_table_of_types_is_total(self) -> None:
        assert TORCH_OF.keys() == set(DataType) - {DataType.INVALID, DataType.BYTES}

    @pytest.mark.parametrize("datatype", TORCH_OF, ids=lambda kind: kind.value)
    @pytest.mark.parametrize("rows", [0, 1, 3])
    def test_every_datatype_goes_in_and_comes_out(self, backend: Backend, tmp_path: Path, datatype: DataType, rows: int) -> None:
        class Identity(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

        whole = config(max_batch_size=4, input=inputs(("x", datatype, (2,))), output=outputs(("y", datatype, (2,))))
        context = scripted(tmp_path, Identity(), whole)
        array = np.array([[0, 1]] * rows, dtype=datatype.numpy).reshape(rows, 2)
        with HostedModel(backend, context) as model:
            given = run(model.instance(ON_CPU), context, x=array)["y"]
        assert given.dtype == datatype.numpy
        assert given.tolist() == array.tolist()

    def test_a_model_is_let_go(self, backend: Backend, tmp_path: Path) -> None:
        """Also by a closed instance that somebody still holds."""
        context = scripted(tmp_path, models.Net(), _net())

        def programs() -> int:
            gc.collect()
            return sum(type(each) is ScriptProgram for each in gc.get_objects())

        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            run(instance, context, image=np.zeros((1, 3, 8, 8), np.float32))
            assert programs() == 1
            assert model.model is not None
            held = model.model.create_instance(ON_CPU)
            assert programs() == 2
            held.close()
        assert programs() == 0


def _net() -> ModelConfig:
    return config(
        max_batch_size=8, input=inputs(("image", DataType.FP32, (3, 8, 8))), output=outputs(("OUTPUT__0", DataType.FP32, (5,)))
    )


class TestValues:
    def test_strings(self, backend: Backend, tmp_path: Path) -> None:
        whole = config(
            input=inputs(("names", DataType.BYTES, (-1,)), ("suffix", DataType.BYTES, (1,))),
            output=outputs(("OUTPUT__0", DataType.BYTES, (-1,)), ("OUTPUT__1", DataType.INT64, (-1,))),
        )
        context = scripted(tmp_path, models.Texts(), whole)
        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            names = np.array(["schön".encode(), b"", b"a\0b"], dtype=object)
            given = run(instance, context, names=names, suffix=np.array([b"!"], dtype=object))
            assert given["OUTPUT__0"].tolist() == ["schön!".encode(), b"!", b"a\0b!"]
            assert given["OUTPUT__1"].tolist() == [6, 0, 3]
            with pytest.raises(Internal, match=r"^PyTorch execute failure: .*utf-8"):
                run(instance, context, names=np.array([b"\xff"], dtype=object), suffix=np.array([b""], dtype=object))
            given = run(instance, context, names=names[:1], suffix=np.array([b""], dtype=object))
            assert given["OUTPUT__0"].tolist() == ["schön".encode()]

    def test_numbers_and_defaults(self, backend: Backend, tmp_path: Path) -> None:
        whole = config(
            input=(
                *inputs(("x", DataType.FP32, (2,)), ("times", DataType.INT32, (1,))),
                *(msgspec.structs.replace(each, optional=True) for each in inputs(("negative", DataType.BOOL, (1,)))),
            ),
            output=outputs(("OUTPUT__0", DataType.FP32, (2,))),
        )
        context = scripted(tmp_path, models.Scaled(), whole)
        times = np.array([3], np.int32)
        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            assert run(instance, context, x=floats(1, 2), times=times)["OUTPUT__0"].tolist() == [3.5, 6.5]
            given = run(instance, context, x=floats(1, 2), times=times, negative=np.array([True]))
            assert given["OUTPUT__0"].tolist() == [-3.5, -6.5]

    def test_a_number_is_one_for_the_whole_batch(self, backend: Backend, tmp_path: Path) -> None:
        whole = config(
            max_batch_size=4,
            input=inputs(("x", DataType.FP32, (2,)), ("times", DataType.INT32, (1,))),
            output=outputs(("OUTPUT__0", DataType.FP32, (2,))),
        )
        context = scripted(tmp_path, models.Scaled(), whole)
        rows = np.ones((2, 2), np.float32)
        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            same = run(instance, context, x=rows, times=np.array([[2], [2]], np.int32))
            assert same["OUTPUT__0"].tolist() == [[2.5, 2.5]] * 2
            with pytest.raises(
                InvalidArgument, match=r"input 'times' must have one value, as argument 'times' of the model is int"
            ):
                run(instance, context, x=rows, times=np.array([[2], [3]], np.int32))

    def test_dicts(self, backend: Backend, tmp_path: Path) -> None:
        whole = config(
            input=inputs(("left", DataType.FP32, (2,)), ("right", DataType.FP32, (2,))),
            output=outputs(("right", DataType.FP32, (2,)), ("left", DataType.FP32, (2,))),
        )
        context = scripted(tmp_path, models.Swapped(), whole)
        with HostedModel(backend, context) as model:
            given = run(model.instance(ON_CPU), context, left=floats(1, 2), right=floats(3, 4))
        assert {name: array.tolist() for name, array in given.items()} == {"left": [3, 4], "right": [1, 2]}

    def test_a_key_that_the_model_does_not_give(self, backend: Backend, tmp_path: Path) -> None:
        whole = config(
            input=inputs(("left", DataType.FP32, (2,)), ("right", DataType.FP32, (2,))),
            output=outputs(("middle", DataType.FP32, (2,))),
        )
        context = scripted(tmp_path, models.Swapped(), whole)
        with (
            HostedModel(backend, context) as model,
            pytest.raises(InvalidArgument, match="output 'middle' is not a key of the dict that the model returned: left, right"),
        ):
            run(model.instance(ON_CPU), context, left=floats(1, 2), right=floats(3, 4))

    def test_arguments_by_name_and_by_position(self, backend: Backend, tmp_path: Path) -> None:
        answers = []
        for number, names in enumerate([("second", "first"), ("a__1", "b__0"), ("a", "b")]):
            whole = config(
                input=inputs(*((name, DataType.FP32, (1,)) for name in names)), output=outputs(("y", DataType.FP32, (1,)))
            )
            context = scripted(tmp_path / str(number), models.Difference(), whole)
            with HostedModel(backend, context) as model:
                given = run(model.instance(ON_CPU), context, **{names[0]: floats(1), names[1]: floats(3)})
            answers.append(given["y"].tolist())
        assert answers == [[2], [2], [-2]]

    def test_an_output_of_another_type_is_an_error_and_of_another_shape_a_warning(self, backend: Backend, tmp_path: Path) -> None:
        other = msgspec.structs.replace(PAIR, output=outputs(("OUTPUT__0", DataType.INT64, (2,))))
        context = scripted(tmp_path / "type", models.Writing(), other)
        with HostedModel(backend, context) as model:
            text = "^configuration expects datatype TYPE_INT64 for output 'OUTPUT__0', model provides TYPE_FP32$"
            with pytest.raises(InvalidArgument, match=text):
                run(model.instance(ON_CPU), context, x=floats(1, 2))
        log = models.Log()
        other = msgspec.structs.replace(PAIR, output=outputs(("OUTPUT__0", DataType.FP32, (2, 1))))
        context = scripted(tmp_path / "shape", models.Writing(), other, log)
        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            for _ in range(3):
                assert run(instance, context, x=floats(1, 2))["OUTPUT__0"].tolist() == [2, 3]
        assert log.warnings() == ["model 'm': configuration expects shape [2,1] for output 'OUTPUT__0', model provides [2]"]


class TestFailures:
    def test_the_request_gets_the_text_and_the_instance_goes_on(self, backend: Backend, tmp_path: Path) -> None:
        context = scripted(tmp_path, models.Net(), _net())
        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            with pytest.raises(
                Internal, match=r"^PyTorch execute failure: [\s\S]*size mismatch|shapes cannot be multiplied"
            ) as failure:
                run(instance, context, image=np.zeros((1, 3, 9, 9), np.float32))
            assert "Exception raised from" not in str(failure.value)
            assert run(instance, context, image=np.zeros((1, 3, 8, 8), np.float32))["OUTPUT__0"].shape == (1, 5)

    def test_memory_that_is_not_there(self, backend: Backend, tmp_path: Path) -> None:
        class Huge(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.empty(int(x[0])).fill_(0.0)[:2]

        context = scripted(tmp_path, Huge(), PAIR)
        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            with pytest.raises(
                Internal, match=r"PyTorch execute failure: [\s\S]*can't allocate memory: you tried to allocate 4000"
            ):
                run(instance, context, x=floats(1e14, 0))
            assert run(instance, context, x=floats(4, 0))["OUTPUT__0"].tolist() == [0, 0]

    def test_a_shape_outside_the_constraints_of_an_exported_program(self, backend: Backend, tmp_path: Path) -> None:
        size = torch.export.Dim("size", min=1, max=4)
        whole = config(
            input=inputs(("first", DataType.FP32, (-1,)), ("second", DataType.FP32, (-1,))),
            output=outputs(("y", DataType.FP32, (-1,))),
        )
        context = context_of(tmp_path, whole)
        path = context.version_directory / "model.pt2"
        models.save_exported(models.Difference(), path, torch.zeros(2), torch.zeros(2), dynamic_shapes=[{0: size}, {0: size}])
        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            with pytest.raises(Internal, match=r"^PyTorch execute failure: Guard failed: "):
                run(instance, context, first=floats(1, 2, 3), second=floats(1))
            assert run(instance, context, first=floats(1), second=floats(1))["y"].tolist() == [0]


class TestSequences:
    def test_implicit_state(self, backend: Backend, tmp_path: Path) -> None:
        state = StateEntry(input_name="STATE__1", output_name="STATE__1", data_type=DataType.FP32, dims=(2,))
        whole = config(
            max_batch_size=4,
            input=inputs(("X__0", DataType.FP32, (2,))),
            output=outputs(("Y__0", DataType.FP32, (2,))),
            sequence_batching=SequenceBatching(state=(state,)),
        )
        context = scripted(tmp_path, models.Running(), whole)
        states = [SequenceState({"STATE__1": np.zeros((1, 2), np.float32)}) for _ in range(2)]
        with HostedModel(backend, context) as model:
            instance = model.instance(ON_CPU)
            for step in (1, 2, 3):
                requests = [
                    dataclasses.replace(request_of(whole, {"X__0": floats(scale, 0)[None]}), state=state)
                    for scale, state in zip((1, 5), states, strict=True)
                ]
                results = instance.start(batch_of(requests)).result()
                first, second = (
                    [tensor.array.tolist() for tensor in result.outputs if tensor.name == "Y__0"] for result in results
                )
                assert (first, second) == ([[[10.0 * step, 0]]], [[[50.0 * step, 0]]])


def test_an_instance_runs_beside_other_threads(backend: Backend, tmp_path: Path) -> None:
    """The interpreter's lock is free while operators run."""

    class Slow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x
            for _ in range(40):
                y = torch.tanh(y @ y)
            return y

    side = 400
    whole = config(input=inputs(("x", DataType.FP32, (side, side))), output=outputs(("y", DataType.FP32, (side, side))))
    context = scripted(tmp_path, Slow(), whole)
    stopped = threading.Event()
    counted = 0

    def count() -> None:
        nonlocal counted
        while not stopped.is_set():
            counted += 1

    with HostedModel(backend, context) as model:
        instance = model.instance(ON_CPU)
        thread = threading.Thread(target=count)
        thread.start()
        try:
            run(instance, context, x=np.eye(side, dtype=np.float32))
        finally:
            stopped.set()
            thread.join()
    assert counted > 1000
