"""The suite of backends, on the recorded TensorRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backends.tensorrt.fake import plan, tensor
from tests.backends.tensorrt.models import DOUBLE, FP32, Machine, config_of, double_config, rows, writes
from tpy.config.model_config import DynamicBatching
from tpy.messages import DataType
from tpy.testing.conformance import BackendConformance, BackendUnderTest


class TestTensorRT(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        machine = Machine()
        return BackendUnderTest(
            create=machine.backend,
            config=double_config(profile=("0", "1"), max_batch_size=16, dynamic_batching=DynamicBatching()),
            write_model=writes(DOUBLE),
            sample=lambda n: {"x": rows(*range(n, 2 * n + 1))},
            expected=lambda inputs: {"y": inputs["x"] * 2},
            write_broken_model=writes(b"no engine"),
            devices=machine.devices,
        )


class TestTensorRTWithoutBatching(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        machine = Machine()
        shape = (2, -1)
        content = plan(
            "two",
            *(tensor(name, "INPUT", shape, "BF16") for name in "ab"),
            *(tensor(name, "OUTPUT", shape, "BF16") for name in ("sum", "difference")),
            profiles=[{key: [(2, 1), (2, 3), (2, 8)] for key in "ab"}],
        )
        kinds = dict.fromkeys(("a", "b", "sum", "difference"), (DataType.BF16, (2, -1)))

        def sample(n: int) -> dict[str, Any]:
            return {name: np.full((2, n + 1), n + offset).astype(DataType.BF16.numpy) for offset, name in enumerate("ab")}

        return BackendUnderTest(
            create=machine.backend,
            config=config_of(
                inputs={name: kinds[name] for name in "ab"},
                outputs={name: kinds[name] for name in ("sum", "difference")},
            ),
            write_model=writes(content),
            sample=sample,
            expected=lambda inputs: {"sum": inputs["a"] + inputs["b"], "difference": inputs["a"] - inputs["b"]},
            failing={name: np.zeros((2, 9), DataType.BF16.numpy) for name in "ab"},
            broken_config=config_of(inputs={"a": kinds["a"]}, outputs={"sum": (FP32, (2, -1))}),
            devices=machine.devices,
        )
