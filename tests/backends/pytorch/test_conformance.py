"""The published suite against the pytorch backend: TorchScript, an exported program, BF16, strings."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tpy.backend import BackendSettings
from tpy.messages import DataType
from tpy.testing.conformance import BackendConformance, BackendUnderTest

torch = pytest.importorskip("torch", reason="needs PyTorch: make setup-torch")

from tests.backends.pytorch import models  # noqa: E402  # imports torch
from tpy_backends.pytorch import create  # noqa: E402

Arrays = Mapping[str, np.ndarray[Any, Any]]
TABLE = np.array([[10, 11], [20, 21], [30, 31]], np.float32)


def _gathering(**changes: Any) -> BackendUnderTest:
    return BackendUnderTest(
        create=lambda: create(BackendSettings(name="pytorch")),
        config=models.config(
            "gathering",
            max_batch_size=8,
            input=models.inputs(("INDEX", DataType.INT64, (1,))),
            output=models.outputs(("OUTPUT__0", DataType.INT64, (1,)), ("OUTPUT__1", DataType.FP32, (1, 2))),
            **changes.pop("config", {}),
        ),
        sample=lambda n: {"INDEX": np.array([[n % 3], [(n + 1) % 3]][: 1 + n % 2], dtype=np.int64)},
        expected=lambda inputs: {"OUTPUT__0": inputs["INDEX"] * 2, "OUTPUT__1": TABLE[inputs["INDEX"]]},
        failing={"INDEX": np.array([[7]], dtype=np.int64)},
        **changes,
    )


class TestTorchScript(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _gathering(
            write_model=lambda folder: models.save_script(models.Gathering(), folder / "model.pt"),
            write_broken_model=lambda folder: (folder / "model.pt").write_bytes(b"not a model"),
        )


class TestSharedWeights(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _gathering(
            config={"parameters": models.parameters(ENABLE_WEIGHT_SHARING="true")},
            write_model=lambda folder: models.save_script(models.Gathering(), folder / "model.pt"),
        )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exporting takes a second."""
    path = tmp_path_factory.mktemp("exported") / "model.pt2"
    batch = torch.export.Dim("batch", min=1, max=8)
    models.save_exported(models.Gathering(), path, torch.tensor([[0], [1]]), dynamic_shapes={"INDEX": {0: batch}})
    return path


class TestExportedProgram(BackendConformance):
    @pytest.fixture
    def subject(self, program: Path) -> BackendUnderTest:
        return _gathering(
            write_model=lambda folder: shutil.copy(program, folder),
            write_broken_model=lambda folder: (folder / "model.pt2").write_bytes(program.read_bytes()[:-200]),
        )


class TestBf16(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        def sample(n: int) -> Arrays:
            size = 1 + n % 2
            numbers = np.arange(2 * size).reshape(size, 2) + n
            return {"a": numbers.astype(ml_dtypes.bfloat16), "b": numbers.astype(np.float32) / 4}

        def expected(inputs: Arrays) -> Arrays:
            wide = inputs["a"].astype(np.float32) + inputs["b"]
            return {"sum": wide.astype(ml_dtypes.bfloat16), "wide": wide}

        return BackendUnderTest(
            create=lambda: create(BackendSettings(name="pytorch")),
            config=models.config(
                "bf16",
                max_batch_size=8,
                input=models.inputs(("a", DataType.BF16, (2,)), ("b", DataType.FP32, (2,))),
                output=models.outputs(("sum", DataType.BF16, (2,)), ("wide", DataType.FP32, (2,))),
            ),
            write_model=lambda folder: models.save_script(models.Sum(), folder / "model.pt"),
            sample=sample,
            expected=expected,
        )


class TestStringsWithoutBatching(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return BackendUnderTest(
            create=lambda: create(BackendSettings(name="pytorch")),
            config=models.config(
                "strings",
                input=models.inputs(("texts", DataType.BYTES, (-1,))),
                output=models.outputs(("OUTPUT__0", DataType.BYTES, (-1,))),
            ),
            write_model=lambda folder: models.save_script(models.Same(), folder / "model.pt"),
            sample=lambda n: {"texts": np.array([b"", "schön".encode(), b"a\0b"][: n % 4], dtype=object)},
            expected=lambda inputs: {"OUTPUT__0": inputs["texts"]},
            write_broken_model=lambda folder: None,
        )
