"""The published suite against the openvino backend: IR, batches of one size only, BF16, strings, a scalar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.backends.hosted import inputs, outputs, parameters
from tpy.backend import BackendSettings
from tpy.messages import DataType
from tpy.testing.conformance import BackendConformance, BackendUnderTest

openvino = pytest.importorskip("openvino", reason="needs OpenVINO: make test-backends")

from openvino import opset13 as ops  # noqa: E402

from tests.backends.openvino import models  # noqa: E402  # imports openvino
from tpy_backends.openvino import create  # noqa: E402

Arrays = Mapping[str, np.ndarray[Any, Any]]


def _subject(**fields: Any) -> BackendUnderTest:
    return BackendUnderTest(
        create=lambda: create(BackendSettings(name="openvino")),
        write_broken_model=lambda folder: (folder / "model.xml").write_text("not a model"),
        **fields,
    )


def _gathering(**changes: Any) -> BackendUnderTest:
    return _subject(
        config=models.config(
            "gathering",
            max_batch_size=8,
            input=inputs(("INDEX", DataType.INT64, (1,))),
            output=outputs(("DOUBLED", DataType.INT64, (1,)), ("ROWS", DataType.FP32, (1, 2))),
            **changes,
        ),
        write_model=lambda folder: models.save(folder / "model.xml", {"INDEX": ([-1, 1], np.int64)}, models.gathering),
        sample=lambda n: {"INDEX": np.array([[n % 3], [(n + 1) % 3]][: 1 + n % 2], dtype=np.int64)},
        expected=lambda given: {"DOUBLED": given["INDEX"] * 2, "ROWS": models.TABLE[given["INDEX"]]},
    )


class TestIntermediateRepresentation(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _gathering()


class TestBatchesOfOneSize(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _gathering(parameters=parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES", ENABLE_BATCH_PADDING="yes"))


class TestFailure(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _subject(
            config=models.config(
                "thirds", input=inputs(("x", DataType.FP32, (-1, 2))), output=outputs(("y", DataType.FP32, (-1, 3)))
            ),
            write_model=lambda folder: models.save(folder / "model.xml", {"x": ([-1, 2], np.float32)}, models.thirds),
            sample=lambda n: {"x": np.arange(6 * (n + 1), dtype=np.float32).reshape(-1, 2)},
            expected=lambda given: {"y": given["x"].reshape(-1, 3)},
            failing={"x": np.zeros((1, 2), np.float32)},
        )


class TestBf16(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        def sample(n: int) -> Arrays:
            numbers = np.arange(2 * (1 + n % 2)).reshape(-1, 2) + n
            return {"a": numbers.astype(ml_dtypes.bfloat16), "b": numbers.astype(np.float32)}

        def network(a: Any, b: Any) -> Any:
            wide = ops.add(ops.convert(a, "f32"), b)
            return {"sum": ops.convert(wide, "bf16"), "wide": wide}

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
            write_model=lambda folder: models.save(
                folder / "model.xml", {"a": ([-1, 2], openvino.Type.bf16), "b": ([-1, 2], np.float32)}, network
            ),
            sample=sample,
            expected=expected,
        )


class TestStrings(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _subject(
            config=models.config(
                "strings", input=inputs(("x", DataType.BYTES, (-1,))), output=outputs(("y", DataType.BYTES, (-1, 1)))
            ),
            write_model=lambda folder: models.save(
                folder / "model.xml",
                {"x": ([-1], openvino.Type.string)},
                lambda x: {"y": ops.reshape(x, models.constant([-1, 1], np.int64), False)},
            ),
            sample=lambda n: {"x": np.array([b"", "schön".encode(), b"a\0c"][: 1 + n % 3], dtype=object)},
            expected=lambda given: {"y": given["x"].reshape(-1, 1)},
        )


class TestScalar(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _subject(
            config=models.config("scalar", input=inputs(("x", DataType.FP32, (1,))), output=outputs(("y", DataType.FP32, (1,)))),
            write_model=lambda folder: models.save(
                folder / "model.xml", {"x": ([], np.float32)}, lambda x: {"y": ops.add(x, models.constant(1, np.float32))}
            ),
            sample=lambda n: {"x": np.array([n], np.float32)},
            expected=lambda given: {"y": given["x"] + 1},
        )
