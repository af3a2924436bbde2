"""The published suite against the tensorflow backend: a SavedModel, strings, BF16, a scalar, a frozen graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.backends.hosted import inputs, outputs, parameters
from tpy.backend import BackendSettings
from tpy.config.model_config import ModelInput, ModelOutput, TensorReshape
from tpy.messages import DataType
from tpy.testing.conformance import BackendConformance, BackendUnderTest

pytest.importorskip("tensorflow", reason="needs TensorFlow: make test-backends")

from tests.backends.tensorflow import models  # imports tensorflow
from tpy_backends.tensorflow import create

_SCALAR = TensorReshape(shape=())
Arrays = Mapping[str, np.ndarray[Any, Any]]


def _subject(**fields: Any) -> BackendUnderTest:
    return BackendUnderTest(create=lambda: create(BackendSettings(name="tensorflow")), **fields)


class TestSavedModel(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _subject(
            config=models.config(
                "gathering",
                platform="tensorflow_savedmodel",
                max_batch_size=8,
                input=inputs(("INDEX", DataType.INT64, (1,))),
                output=outputs(("DOUBLED", DataType.INT64, (1,)), ("ROWS", DataType.FP32, (1, 2))),
            ),
            write_model=lambda folder: models.save_gathering(folder / "model.savedmodel"),
            write_broken_model=lambda folder: (folder / "model.savedmodel").mkdir(),
            sample=lambda n: {"INDEX": np.array([[n % 3], [(n + 1) % 3]][: 1 + n % 2], dtype=np.int64)},
            expected=lambda given: {"DOUBLED": given["INDEX"] * 2, "ROWS": models.TABLE[given["INDEX"]]},
            failing={"INDEX": np.array([[7]], dtype=np.int64)},
        )


class TestStrings(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _subject(
            config=models.config(
                "texts",
                max_batch_size=8,
                input=(ModelInput(name="TEXT", data_type=DataType.BYTES, dims=(1,), reshape=_SCALAR),),
                output=(
                    ModelOutput(name="LENGTH", data_type=DataType.INT32, dims=(1,), reshape=_SCALAR),
                    ModelOutput(name="SAME", data_type=DataType.BYTES, dims=(1,), reshape=_SCALAR),
                ),
                parameters=parameters(TF_SIGNATURE_DEF="texts"),
            ),
            write_model=lambda folder: models.save_gathering(folder / "model.savedmodel"),
            sample=lambda n: {"TEXT": np.array([b"", b"\xff\0", "schön".encode()][n % 3 : 1 + n % 3], dtype=object)},
            expected=lambda given: {
                "LENGTH": np.array([len(text) for text in given["TEXT"]], np.int32),
                "SAME": given["TEXT"],
            },
        )


class TestBf16(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        def sample(n: int) -> Arrays:
            numbers = np.arange(2 * (1 + n % 2)).reshape(-1, 2) + n
            return {"a": numbers.astype(ml_dtypes.bfloat16), "b": numbers.astype(np.float32) / 4}

        def expected(given: Arrays) -> Arrays:
            wide = given["a"].astype(np.float32) + given["b"]
            return {"sum": wide.astype(ml_dtypes.bfloat16), "wide": wide}

        return _subject(
            config=models.config(
                "bf16",
                max_batch_size=8,
                input=inputs(("a", DataType.BF16, (2,)), ("b", DataType.FP32, (2,))),
                output=outputs(("sum", DataType.BF16, (2,)), ("wide", DataType.FP32, (2,))),
            ),
            write_model=lambda folder: models.save_adding(folder / "model.savedmodel", serving_default="bf16"),
            sample=sample,
            expected=expected,
        )


class TestScalar(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _subject(
            config=models.config("scalar", input=inputs(("x", DataType.FP32, (1,))), output=outputs(("y", DataType.FP32, (1,)))),
            write_model=lambda folder: models.save_adding(folder / "model.savedmodel", serving_default="scalar"),
            sample=lambda n: {"x": np.array([n], np.float32)},
            expected=lambda given: {"y": given["x"] + 1},
        )


class TestFrozenGraph(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _subject(
            config=models.config(
                "frozen",
                platform="tensorflow_graphdef",
                max_batch_size=8,
                input=inputs(("x", DataType.FP32, (2,))),
                output=outputs(("y", DataType.FP32, (2,))),
            ),
            write_model=lambda folder: models.save_graph(folder / "model.graphdef"),
            write_broken_model=lambda folder: (folder / "model.graphdef").write_bytes(b"not a model"),
            sample=lambda n: {"x": np.arange(2 * (1 + n % 2), dtype=np.float32).reshape(-1, 2) + n},
            expected=lambda given: {"y": given["x"] * 2},
        )
