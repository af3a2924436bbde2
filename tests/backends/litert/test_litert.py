"""`.tflite` files: the published suite, names, what is completed, and what goes wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.hosted import completed, context_of, inputs, outputs, parameters, run
from tpy.backend import Backend, BackendSettings, InstancePlacement, ModelContext
from tpy.config.model_config import DynamicBatching, InstanceKind
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable
from tpy.messages import DataType
from tpy.testing import HostedModel
from tpy.testing.conformance import BackendConformance, BackendUnderTest

pytest.importorskip("ai_edge_litert", reason="needs LiteRT: make test-backends")
pytest.importorskip("tensorflow", reason="needs TensorFlow, which converts the models: make test-backends")

from tests.backends.litert import models  # imports tensorflow
from tests.backends.litert.models import config
from tpy_backends.litert import create
from tpy_data.registry import BackendRegistry

ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
GATHERING: dict[str, Any] = {
    "max_batch_size": 8,
    "input": inputs(("INDEX", DataType.INT32, (1,))),
    "output": outputs(("DOUBLED", DataType.INT32, (1,)), ("ROWS", DataType.FP32, (1, 2))),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    models.save(folder / "gather.tflite", serving_default="gather")
    models.save(folder / "same.tflite", anything="same")
    models.save(folder / "scalar.tflite", serving_default="scalar")
    models.save(folder / "fixed.tflite", serving_default="fixed")
    models.save(folder / "two.tflite", one="gather", two="scalar")
    return folder


@pytest.fixture(scope="module")
def backend() -> Backend:
    return create(BackendSettings(name="litert"))


def placed(root: Path, file: Path, **fields: Any) -> ModelContext:
    context = context_of(root, config(**fields))
    shutil.copy(file, context.version_directory / "model.tflite")
    return context


def _subject(file: Path, **fields: Any) -> BackendUnderTest:
    return BackendUnderTest(
        create=lambda: create(BackendSettings(name="litert")),
        write_model=lambda folder: shutil.copy(file, folder / "model.tflite"),
        write_broken_model=lambda folder: (folder / "model.tflite").write_bytes(b"not a model"),
        **fields,
    )


class TestSignature(BackendConformance):
    @pytest.fixture
    def subject(self, files: Path) -> BackendUnderTest:
        return _subject(
            files / "gather.tflite",
            config=config("gathering", **GATHERING),
            sample=lambda n: {"INDEX": np.array([[n % 3], [(n + 1) % 3]][: 1 + n % 2], dtype=np.int32)},
            expected=lambda given: {"DOUBLED": given["INDEX"] * 2, "ROWS": models.TABLE[given["INDEX"]]},
            failing={"INDEX": np.array([[7]], dtype=np.int32)},
        )


class TestTensorNames(BackendConformance):
    @pytest.fixture
    def subject(self, files: Path) -> BackendUnderTest:
        return _subject(
            files / "gather.tflite",
            config=config(
                "gathering",
                max_batch_size=8,
                input=inputs(("serving_default_INDEX:0", DataType.INT32, (1,))),
                output=outputs(("PartitionedCall:0", DataType.INT32, (1,)), ("PartitionedCall:1", DataType.FP32, (1, 2))),
            ),
            sample=lambda n: {"serving_default_INDEX:0": np.array([[n % 3], [(n + 1) % 3]][: 1 + n % 2], dtype=np.int32)},
            expected=lambda given: {
                "PartitionedCall:0": given["serving_default_INDEX:0"] * 2,
                "PartitionedCall:1": models.TABLE[given["serving_default_INDEX:0"]],
            },
        )


class TestStrings(BackendConformance):
    @pytest.fixture
    def subject(self, files: Path) -> BackendUnderTest:
        return _subject(
            files / "same.tflite",
            config=config(
                "texts", input=inputs(("TEXT", DataType.BYTES, (-1,))), output=outputs(("SAME", DataType.BYTES, (-1,)))
            ),
            sample=lambda n: {"TEXT": np.array([b"", b"\xff\0", "schön".encode()][: 1 + n % 3], dtype=object)},
            expected=lambda given: {"SAME": given["TEXT"]},
        )


class TestScalar(BackendConformance):
    @pytest.fixture
    def subject(self, files: Path) -> BackendUnderTest:
        return _subject(
            files / "scalar.tflite",
            config=config("scalar", input=inputs(("x", DataType.FP32, (1,))), output=outputs(("y", DataType.FP32, (1,)))),
            sample=lambda n: {"x": np.array([n], np.float32)},
            expected=lambda given: {"y": given["x"] + 1},
        )


def test_an_open_first_dimension_is_the_batch(backend: Backend, tmp_path: Path, files: Path) -> None:
    found = completed(backend, placed(tmp_path, files / "gather.tflite")).config
    assert found.max_batch_size == 4
    assert found.dynamic_batching == DynamicBatching()
    assert found.input == GATHERING["input"]
    assert found.output == GATHERING["output"]


def test_fixed_shapes_do_not_batch(backend: Backend, tmp_path: Path, files: Path) -> None:
    context = completed(backend, placed(tmp_path, files / "fixed.tflite"))
    assert context.config.max_batch_size == 0
    assert context.config.input == inputs(("x", DataType.FP32, (2, 3)))
    with HostedModel(backend, context) as model:
        instance = model.instance(ON_CPU)
        assert run(instance, context, x=np.ones((2, 3), np.float32))["y"].tolist() == [[2] * 3] * 2


def test_one_of_several_signatures(backend: Backend, tmp_path: Path, files: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"no signature 'serving_default' .*it has: one\(INDEX\); two\(x\)"):
        backend.auto_complete(placed(tmp_path, files / "two.tflite"))
    context = completed(backend, placed(tmp_path, files / "two.tflite", parameters=parameters(TF_SIGNATURE_DEF="two")))
    with HostedModel(backend, context) as model:
        assert run(model.instance(ON_CPU), context, x=np.ones(1, np.float32))["y"].tolist() == [2]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"input": inputs(("INDEX", DataType.INT64, (1,)))},
            "expects datatype TYPE_INT64 for input 'INDEX', model provides TYPE_INT32",
        ),
        ({"input": inputs(("i", DataType.INT32, (1,)))}, "unexpected inference input 'i', allowed inputs are: INDEX"),
        ({"output": outputs(("ROWS", DataType.FP32, (2,)))}, r"tensor 'ROWS': .*shape \[-1,1,2\].*complete shape \[-1,2\]"),
        (
            {"parameters": parameters(tflite_num_threads="0")},
            "'tflite_num_threads' of model 'm' must be a positive number, got 0",
        ),
    ],
)
def test_configuration_and_file_are_both_shown(
    backend: Backend, tmp_path: Path, files: Path, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(TpyError, match=text):
        backend.load(placed(tmp_path, files / "gather.tflite", **{**GATHERING, **changes}))


def test_a_file_that_is_no_model_and_one_that_is_not_there(backend: Backend, tmp_path: Path) -> None:
    context = context_of(tmp_path, config(**GATHERING))
    (context.version_directory / "net.tflite").write_bytes(b"no model")
    with pytest.raises(Unavailable, match=r"the folder holds net.tflite; rename net.tflite, or set default_model_filename"):
        backend.load(context)
    (context.version_directory / "net.tflite").rename(context.version_directory / "model.tflite")
    with pytest.raises(Internal, match=r"unable to load model 'm': LiteRT cannot read 'model.tflite'"):
        backend.load(context)


def test_memory_that_is_short_while_loading_costs_the_others_nothing(backend: Backend, tmp_path: Path, files: Path) -> None:
    other = placed(tmp_path, files / "gather.tflite", **GATHERING)
    context = context_of(tmp_path, config("huge"))
    models.save(context.version_directory / "model.tflite", serving_default="huge")
    with HostedModel(backend, other) as model:
        instance = model.instance(ON_CPU)
        with pytest.raises(
            Internal, match=r"unable to load model 'huge': LiteRT cannot read 'model.tflite': it gives no reason; memory"
        ):
            backend.load(context)
        assert run(instance, other, INDEX=np.array([[1]], np.int32))["DOUBLED"].tolist() == [[2]]


def test_the_name_of_tritons_backend_for_these_files(tmp_path: Path, files: Path) -> None:
    backend = BackendRegistry().get("armnn_tflite")
    assert backend.capabilities.default_model_filename == "model.tflite"
