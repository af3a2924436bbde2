"""`runtime: "model.py"`: a class of the user's in a worker process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpy.backend import Backend, InstancePlacement
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.errors import TpyError
from tpy.messages import DataType
from tpy.testing import HostedModel, batch_of, request_of

torch = pytest.importorskip("torch", reason="needs PyTorch: make setup-torch")

from tests.backends.pytorch import models  # noqa: E402  # imports torch
from tests.backends.pytorch.models import config, context_of, inputs, outputs, run  # noqa: E402

ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
SOURCE = """
import torch


class Doubled(torch.nn.Module):
    def forward(self, x):
        return x * 2


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)
        self.doubled = Doubled()

    def forward(self, x, y):
        if float(y.min()) < 0:
            raise ValueError("negative")
        return self.linear(x) + y, self.doubled(y)
"""
WEIGHTS = {"linear.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), "linear.bias": torch.zeros(3)}


@pytest.fixture(scope="module")
def backend() -> Any:
    backend = models.make_backend()
    yield backend
    backend.close()


def layer(**parameters: str) -> ModelConfig:
    return config(
        runtime="model.py",
        max_batch_size=8,
        input=inputs(("x", DataType.FP32, (2,)), ("y", DataType.FP32, (1,))),
        output=outputs(("sum", DataType.FP32, (3,)), ("doubled", DataType.FP32, (1,))),
        parameters=models.parameters(**parameters),
    )


def rows(*values: float) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "x": np.array([[value, value + 1] for value in values], np.float32),
        "y": np.array([[value] for value in values], np.float32),
    }


def expected(*values: float) -> list[list[float]]:
    return [[2 * value, 2 * value + 1, 3 * value + 1] for value in values]


def test_a_class_with_weights(backend: Backend, tmp_path: Path) -> None:
    """One worker: right answers, batches, failures, and parameters."""
    whole = layer(NUM_THREADS="1", TORCH_COMPILE_OPTIONAL_PARAMETERS='{"disable": true}')
    context = context_of(tmp_path, whole)
    (context.version_directory / "model.py").write_text(SOURCE)
    torch.save(WEIGHTS, context.version_directory / "model.pt")
    assert backend.auto_complete(context) == whole
    with HostedModel(backend, context) as model:
        instance = model.instance(ON_CPU)
        given = run(instance, context, **rows(1, 2))
        assert given["sum"].tolist() == expected(1, 2)
        assert given["doubled"].tolist() == [[2], [4]]
        results = instance.start(batch_of([request_of(whole, rows(3)), request_of(whole, rows(4, 5))])).result()
        assert [result.outputs[0].array.tolist() for result in results] == [expected(3), expected(4, 5)]
        with pytest.raises(TpyError, match="negative"):
            run(instance, context, **rows(-1))
        assert run(instance, context, **rows(7))["sum"].tolist() == expected(7)


@pytest.mark.parametrize(
    ("source", "weights", "text"),
    [
        ("import torch\n", None, "Cannot find a subclass of torch.nn.Module"),
        (SOURCE, {"linear.weight": torch.zeros(3, 2)}, r"Missing key\(s\) in state_dict: \"linear\.bias\""),
        (None, None, r"unable to find '.*model\.py'"),
    ],
    ids=["no class", "other weights", "no file"],
)
def test_what_is_missing(backend: Backend, tmp_path: Path, source: str | None, weights: Any, text: str) -> None:
    context = context_of(tmp_path, layer())
    if source is not None:
        (context.version_directory / "model.py").write_text(source)
    if weights is not None:
        torch.save(weights, context.version_directory / "model.pt")
    with HostedModel(backend, context) as model, pytest.raises(TpyError, match=text):
        model.instance(ON_CPU)
