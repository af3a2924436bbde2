"""The suite that every backend of tpy passes, with a small model of this one."""

import json

import numpy as np
import pytest
from tpy_linear import create

from tpy.backend import BackendSettings
from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput, ModelOutput
from tpy.messages import DataType
from tpy.testing.conformance import BackendConformance, BackendUnderTest


class TestLinear(BackendConformance):
    @pytest.fixture
    def subject(self):
        return BackendUnderTest(
            create=lambda: create(BackendSettings(name="linear")),
            config=ModelConfig(
                name="small",
                backend="linear",
                max_batch_size=8,
                default_model_filename="model.json",
                input=(ModelInput(name="X", data_type=DataType.FP32, dims=(2,)),),
                output=(ModelOutput(name="Y", data_type=DataType.FP32, dims=(1,)),),
            ),
            write_model=lambda folder: (folder / "model.json").write_text(json.dumps({"weights": [2, 3], "bias": 1})),
            write_broken_model=lambda folder: (folder / "model.json").write_text("[]"),
            sample=lambda n: {"X": np.arange(2 * (1 + n % 2), dtype=np.float32).reshape(-1, 2) + n},
            expected=lambda inputs: {"Y": (inputs["X"] @ np.float32([2, 3]) + 1)[:, None].astype(np.float32)},
            failing={"X": np.full((1, 2), np.nan, np.float32)},
        )
