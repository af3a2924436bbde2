"""Configurations and contexts of models, and a run of one request, for the tests of any backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tpy.backend import Backend, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput, ModelOutput, ModelParameter
from tpy.messages import DataType
from tpy.testing import HostedInstance, request_of


def inputs(*tensors: tuple[str, DataType, tuple[int, ...]]) -> tuple[ModelInput, ...]:
    return tuple(ModelInput(name=name, data_type=datatype, dims=dims) for name, datatype, dims in tensors)


def outputs(*tensors: tuple[str, DataType, tuple[int, ...]]) -> tuple[ModelOutput, ...]:
    return tuple(ModelOutput(name=name, data_type=datatype, dims=dims) for name, datatype, dims in tensors)


def parameters(**values: str) -> dict[str, ModelParameter]:
    return {key: ModelParameter(string_value=text) for key, text in values.items()}


class Log:
    """Takes what a model logs."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, level: str, text: str) -> None:
        self.lines.append((level, text))

    def warnings(self) -> list[str]:
        return [text for level, text in self.lines if level == "warning"]


def context_of(root: Path, model_config: ModelConfig, log: Log | None = None) -> ModelContext:
    """The folder of version 1 exists from now on."""
    version_directory = root / model_config.name / "1"
    version_directory.mkdir(parents=True, exist_ok=True)
    return ModelContext(
        name=model_config.name,
        version=1,
        generation=1,
        config=model_config,
        model_directory=version_directory.parent,
        version_directory=version_directory,
        log=log or Log(),
    )


def completed(backend: Backend, context: ModelContext) -> ModelContext:
    """With the configuration that the backend makes of it."""
    return msgspec.structs.replace(context, config=backend.auto_complete(context))


def run(instance: HostedInstance, context: ModelContext, **arrays: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Outputs by name of one request; raises its error."""
    result = instance.execute(request_of(context.config, {name: np.asarray(array) for name, array in arrays.items()}))[0]
    if result.error is not None:
        raise result.error
    return {tensor.name: tensor.array for tensor in result.outputs}
