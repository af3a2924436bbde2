"""The published suite against the backends of this repository and the fake one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.backends import onnx_models
from tpy.backend import BackendSettings, ExecutionBatch, ExecutionResult
from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput, ModelOutput, ModelParameter
from tpy.errors import Internal
from tpy.messages import DataType
from tpy.testing import FakeBackend
from tpy.testing.conformance import BackendConformance, BackendUnderTest
from tpy_backends.onnxruntime import create as create_onnxruntime
from tpy_data.backends.identity import create as create_identity

Arrays = Mapping[str, np.ndarray[Any, Any]]


def _tensors(kind: type, *tensors: tuple[str, DataType, tuple[int, ...]]) -> tuple[Any, ...]:
    return tuple(kind(name=name, data_type=datatype, dims=dims) for name, datatype, dims in tensors)


def _pairs(n: int) -> dict[str, np.ndarray[Any, Any]]:
    """Batch size 1 or 2."""
    size = 1 + n % 2
    return {
        "INPUT0": np.arange(3 * size, dtype=np.float32).reshape(size, 3) + n,
        "INPUT1": np.array([[f"text {n}".encode()], [b"\xff\0\xfe"]][:size], dtype=object),
    }


def _copied(inputs: Arrays) -> Arrays:
    return {name.replace("INPUT", "OUTPUT"): array for name, array in inputs.items()}


PAIRS = ModelConfig(
    name="pairs",
    backend="identity",
    max_batch_size=8,
    input=_tensors(ModelInput, ("INPUT0", DataType.FP32, (3,)), ("INPUT1", DataType.BYTES, (1,))),
    output=_tensors(ModelOutput, ("OUTPUT0", DataType.FP32, (3,)), ("OUTPUT1", DataType.BYTES, (1,))),
)


def _with_parameters(config: ModelConfig, **parameters: str) -> ModelConfig:
    import msgspec

    return msgspec.structs.replace(
        config, parameters={key: ModelParameter(string_value=text) for key, text in parameters.items()}
    )


class TestIdentity(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return BackendUnderTest(
            create=lambda: create_identity(BackendSettings(name="identity")),
            config=_with_parameters(PAIRS, fail_request="told to fail", fail_only_id="bad"),
            sample=_pairs,
            expected=_copied,
            failing=_pairs(0),
            isolates_failures=True,
            broken_config=_with_parameters(PAIRS, fail_load="told not to load"),
        )


def _fail_bad(batch: ExecutionBatch) -> list[ExecutionResult] | None:
    if any(request.id == "bad" for request in batch.requests):
        raise Internal("told to fail")
    return None


class TestFake(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        def create() -> FakeBackend:
            backend = FakeBackend()
            backend.on_execute = _fail_bad
            return backend

        return BackendUnderTest(create=create, config=PAIRS, sample=_pairs, expected=_copied, failing=_pairs(0))


class TestOnnxRuntime(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        table = np.array([[10, 11], [20, 21], [30, 31]], np.float32)
        return BackendUnderTest(
            create=lambda: create_onnxruntime(BackendSettings(name="onnxruntime")),
            config=ModelConfig(
                name="gathering",
                backend="onnxruntime",
                max_batch_size=8,
                input=_tensors(ModelInput, ("INDEX", DataType.INT64, (1,))),
                output=_tensors(ModelOutput, ("DOUBLED", DataType.INT64, (1,)), ("OUTPUT", DataType.FP32, (1, 2))),
            ),
            write_model=lambda folder: _put(folder, onnx_models.gathering()),
            sample=lambda n: {"INDEX": np.array([[n % 3], [(n + 1) % 3]][: 1 + n % 2], dtype=np.int64)},
            expected=lambda inputs: {"OUTPUT": table[inputs["INDEX"]], "DOUBLED": inputs["INDEX"] * 2},
            failing={"INDEX": np.array([[7]], dtype=np.int64)},
            write_broken_model=lambda folder: _put(folder, b"not a model"),
        )


class TestOnnxRuntimeBf16(BackendConformance):
    """BF16 goes through values of ONNX Runtime's own, not through numpy."""

    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        def sample(n: int) -> Arrays:
            size = 1 + n % 2
            numbers = np.arange(2 * size).reshape(size, 2) + n
            return {"A": numbers.astype(ml_dtypes.bfloat16), "B": numbers.astype(np.float32) / 4}

        def expected(inputs: Arrays) -> Arrays:
            wide = inputs["A"].astype(np.float32) + inputs["B"]
            return {"WIDE": wide, "SUM": wide.astype(ml_dtypes.bfloat16)}

        return BackendUnderTest(
            create=lambda: create_onnxruntime(BackendSettings(name="onnxruntime")),
            config=ModelConfig(
                name="bf16",
                backend="onnxruntime",
                max_batch_size=8,
                input=_tensors(ModelInput, ("A", DataType.BF16, (2,)), ("B", DataType.FP32, (2,))),
                output=_tensors(ModelOutput, ("SUM", DataType.BF16, (2,)), ("WIDE", DataType.FP32, (2,))),
            ),
            write_model=lambda folder: _put(folder, onnx_models.bf16_sum()),
            sample=sample,
            expected=expected,
        )


class TestOnnxRuntimeWithoutBatching(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return BackendUnderTest(
            create=lambda: create_onnxruntime(BackendSettings(name="onnxruntime")),
            config=ModelConfig(
                name="strings",
                backend="onnxruntime",
                input=_tensors(ModelInput, ("INPUT", DataType.BYTES, (-1,))),
                output=_tensors(ModelOutput, ("OUTPUT", DataType.BYTES, (-1,))),
            ),
            write_model=lambda folder: _put(folder, onnx_models.identity(DataType.BYTES, ["K"])),
            sample=lambda n: {"INPUT": np.array([b"", "schön".encode(), b"a\0b"][: n % 4], dtype=object)},
            expected=_copied,
            write_broken_model=lambda folder: None,
        )


def _put(folder: Path, content: bytes) -> None:
    (folder / "model.onnx").write_bytes(content)
