"""The published suite against python models, in processes and in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpy.backend import BackendSettings
from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput, ModelOutput, ModelParameter
from tpy.messages import DataType
from tpy.testing.conformance import BackendConformance, BackendUnderTest
from tpy_data.backends.python import create

Arrays = Mapping[str, np.ndarray[Any, Any]]

PAIRS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            if request.request_id() == "bad":
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("told to fail")))
                continue
            outputs = [
                pb_utils.Tensor(tensor.name().replace("INPUT", "OUTPUT"), tensor.as_numpy()) for tensor in request.inputs()
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
"""

BROKEN = "class TritonPythonModel:\n    def execute(self, requests)\n"


def _config(isolation: str) -> ModelConfig:
    return ModelConfig(
        name="pairs",
        backend="python",
        max_batch_size=8,
        input=(
            ModelInput(name="INPUT0", data_type=DataType.FP32, dims=(3,)),
            ModelInput(name="INPUT1", data_type=DataType.BYTES, dims=(1,)),
        ),
        output=(
            ModelOutput(name="OUTPUT0", data_type=DataType.FP32, dims=(3,)),
            ModelOutput(name="OUTPUT1", data_type=DataType.BYTES, dims=(1,)),
        ),
        parameters={"isolation": ModelParameter(string_value=isolation)},
    )


def _sample(n: int) -> Arrays:
    size = 1 + n % 2
    return {
        "INPUT0": np.arange(3 * size, dtype=np.float32).reshape(size, 3) + n,
        "INPUT1": np.array([[f"text {n}".encode()], [b"\xff\0\xfe"]][:size], dtype=object),
    }


def _copied(inputs: Arrays) -> Arrays:
    return {name.replace("INPUT", "OUTPUT"): array for name, array in inputs.items()}


def _writer(code: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.py").write_text(code)

    return write


class TestPythonProcess(BackendConformance):
    isolation = "process"

    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return BackendUnderTest(
            create=lambda: create(BackendSettings(name="python")),
            config=_config(self.isolation),
            sample=_sample,
            expected=_copied,
            write_model=_writer(PAIRS),
            failing=_sample(0),
            isolates_failures=True,
            write_broken_model=_writer(BROKEN),
        )


class TestPythonThread(TestPythonProcess):
    isolation = "thread"
