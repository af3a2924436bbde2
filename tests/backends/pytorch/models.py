"""Small PyTorch models, built on the spot, and what is needed to run them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.backends.hosted import Log, completed, context_of, inputs, outputs, parameters, run  # noqa: F401  # for the tests
from tpy.backend import Backend, BackendSettings
from tpy.config import ModelConfig
from tpy_backends.pytorch import create

Arrays = Mapping[str, np.ndarray[Any, Any]]


class Gathering(torch.nn.Module):
    """INDEX -> twice INDEX, and rows of a table; an index that the table does not have raises."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.tensor([[10.0, 11.0], [20.0, 21.0], [30.0, 31.0]]))

    def forward(self, INDEX: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return INDEX * 2, torch.embedding(self.table, INDEX)


class Net(torch.nn.Module):
    """A convolution and a linear layer with weights that are always the same."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.head = torch.nn.Linear(4 * 6 * 6, 5)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(image)).flatten(1))


class Total(torch.nn.Module):
    """Adds up all it ever got, and returns the very tensor that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return self.total


class Writing(torch.nn.Module):
    """Writes its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


class Texts(torch.nn.Module):
    """Strings, and their lengths in bytes."""

    def forward(self, names: list[str], suffix: list[str]) -> tuple[list[str], torch.Tensor]:
        return [name + suffix[0] for name in names], torch.tensor([len(name) for name in names])


class Scaled(torch.nn.Module):
    """Takes numbers beside a tensor; one has a default."""

    def forward(self, x: torch.Tensor, times: int, offset: float = 0.5, negative: bool = False) -> torch.Tensor:
        y = x * times + offset
        return -y if negative else y


class Sum(torch.nn.Module):
    """BF16 and FP32 in, both out."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = a.to(torch.float32) + b
        return wide.to(torch.bfloat16), wide


class Same(torch.nn.Module):
    """A list of strings as it is."""

    def forward(self, texts: list[str]) -> list[str]:
        return texts


class Swapped(torch.nn.Module):
    """A dict in, a dict out."""

    def forward(self, pair: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"left": pair["right"], "right": pair["left"]}


class Difference(torch.nn.Module):
    """The order of its arguments matters."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first - second


class Running(torch.nn.Module):
    """A state as an argument and a result."""

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = state + x
        return state * 10, state


class Nested(torch.nn.Module):
    """Arguments and results of several forms, for exported programs."""

    def forward(self, x: torch.Tensor, pair: dict[str, torch.Tensor], *, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": x + pair["b"], "product": pair["a"] * mask}


@contextmanager
def quiet() -> Iterator[None]:
    """Drops warnings: TorchScript is old, says PyTorch, and exporting says more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def save_script(module: torch.nn.Module, path: Path) -> None:
    """As TorchScript, from its source."""
    with quiet():
        torch.jit.script(module.eval()).save(str(path))


def save_trace(module: torch.nn.Module, path: Path, *sample: torch.Tensor) -> None:
    """As TorchScript, from a run."""
    with quiet():
        torch.jit.trace(module.eval(), sample).save(str(path))


def save_exported(
    module: torch.nn.Module, path: Path, *sample: Any, kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None
) -> Any:
    """As an exported program."""
    with quiet():
        exported = torch.export.export(module.eval(), sample, dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
        torch.export.save(exported, str(path))
    return exported


def config(name: str = "m", **fields: Any) -> ModelConfig:
    """A configuration of this backend."""
    return ModelConfig(name=name, backend="pytorch", **fields)


def make_backend(**pairs: str) -> Backend:
    return create(BackendSettings(name="pytorch", config=pairs))
