"""The published suite against the dali backend: batches, ragged batches, encoded images, no batches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.hosted import inputs, outputs
from tpy.backend import BackendSettings
from tpy.config.model_config import DynamicBatching, ModelInput, ModelOutput, TensorReshape
from tpy.messages import DataType
from tpy.testing.conformance import BackendConformance, BackendUnderTest

pytest.importorskip("nvidia.dali", reason="needs DALI: make test-backends")

from tests.backends.dali import models  # imports DALI
from tpy_backends.dali import create

PICTURES = {colour: models.jpeg(colour, (40, 30)) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))}


def _subject(**fields: object) -> BackendUnderTest:
    return BackendUnderTest(
        create=lambda: create(BackendSettings(name="dali")),
        write_broken_model=lambda folder: (folder / "model.dali").write_bytes(b"no pipeline"),
        **fields,  # type: ignore[arg-type]  # as the class has them
    )


class TestSerialized(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _subject(
            config=models.config(
                "sums",
                max_batch_size=8,
                dynamic_batching=DynamicBatching(),
                input=inputs(("x", DataType.FP32, (3,))),
                output=(
                    ModelOutput(name="sum", data_type=DataType.FP32, dims=(1,), reshape=TensorReshape(shape=())),
                    ModelOutput(name="same", data_type=DataType.FP32, dims=(3,)),
                ),
            ),
            write_model=lambda folder: models.save(folder / "model.dali"),
            sample=lambda n: {"x": np.arange(3 * (1 + n % 2), dtype=np.float32).reshape(-1, 3) + n},
            expected=lambda given: {"sum": given["x"].sum(axis=1), "same": given["x"]},
        )


class TestRagged(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _subject(
            config=models.config(
                "doubling",
                max_batch_size=8,
                dynamic_batching=DynamicBatching(),
                input=(
                    ModelInput(name="x", data_type=DataType.INT32, dims=(-1,), allow_ragged_batch=True),
                    ModelInput(name="y", data_type=DataType.FP32, dims=(-1,), allow_ragged_batch=True),
                ),
                output=outputs(("first", DataType.INT32, (-1,)), ("second", DataType.FP32, (-1,))),
            ),
            write_model=lambda folder: models.save_text(folder / "model.dali", models.DOUBLING),
            sample=lambda n: {"x": np.full((1 + n % 2, 2 + n), n, np.int32), "y": np.full((1 + n % 2, 1 + n), n, np.float32)},
            expected=lambda given: {"first": given["x"] * 2, "second": given["y"] + 1},
        )


class TestEncodedImages(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _subject(
            config=models.config(
                "decoding",
                max_batch_size=8,
                dynamic_batching=DynamicBatching(),
                input=(ModelInput(name="DALI_INPUT_0", data_type=DataType.UINT8, dims=(-1,), allow_ragged_batch=True),),
                output=outputs(("DALI_OUTPUT_0", DataType.FP32, (3, 8, 8))),
            ),
            write_model=lambda folder: models.save_text(folder / "model.dali", models.DECODING),
            sample=lambda n: {"DALI_INPUT_0": list(PICTURES.values())[n % 3][None]},
            expected=lambda given: {"DALI_OUTPUT_0": _of(given["DALI_INPUT_0"][0])},
            failing={"DALI_INPUT_0": np.arange(50, dtype=np.uint8)[None]},
            isolates_failures=True,
            tolerance=0.02,
        )


class TestWithoutBatches(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return _subject(
            config=models.config(
                "sums",
                input=inputs(("x", DataType.FP32, (-1, -1))),
                output=outputs(("sum", DataType.FP32, (-1,)), ("same", DataType.FP32, (-1, -1))),
            ),
            write_model=lambda folder: models.save(folder / "model.dali"),
            sample=lambda n: {"x": np.arange(6 * (n + 1), dtype=np.float32).reshape(n + 1, 6)},
            expected=lambda given: {"sum": given["x"].sum(axis=1), "same": given["x"]},
            failing={"x": np.zeros((17, 1), np.float32)},
            isolates_failures=True,
        )


def _of(encoded: np.ndarray) -> np.ndarray:
    colour = next(colour for colour, picture in PICTURES.items() if picture.tobytes() == encoded.tobytes())
    return np.broadcast_to((np.array(colour, np.float32) / 255)[None, :, None, None], (1, 3, 8, 8))
