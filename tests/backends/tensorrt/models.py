"""Models of the recorded TensorRT, and what serves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.backends.tensorrt.fake import FakeTensorRT, plan, tensor
from tpy.backend import BackendSettings, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceGroup, InstanceKind, ModelInput, ModelOutput
from tpy.devices import Devices
from tpy.messages import DataType
from tpy.testing import FakeDevice
from tpy_backends.tensorrt.backend import TensorRTBackend
from tpy_backends.tensorrt.settings import backend_config

FP32 = DataType.FP32
Kinds = Mapping[str, tuple[DataType, tuple[int, ...]]]

DOUBLE = plan(
    "double",
    tensor("x", "INPUT", (-1, 4)),
    tensor("y", "OUTPUT", (-1, 4)),
    profiles=[{"x": [(1, 4), (2, 4), (4, 4)]}, {"x": [(1, 4), (8, 4), (16, 4)]}],
)
"""y = 2 x. Two profiles: up to 4 rows, best with 2; and up to 16, best with 8."""


class Machine:
    """A server's devices, and TensorRT on them."""

    def __init__(self, *, memory_bytes: int = 1 << 26, **settings: str) -> None:
        self.device = FakeDevice(0, memory_bytes=memory_bytes)
        self.devices = Devices([self.device], pinned_pool_bytes=1 << 20, cuda_pool_bytes={0: 1 << 20})
        self.library = FakeTensorRT(self.device)
        self.logged: list[tuple[str, str]] = []
        self._settings = {name.replace("_", "-"): value for name, value in settings.items()}

    def backend(self) -> TensorRTBackend:
        return TensorRTBackend(
            BackendSettings(name="tensorrt", config=self._settings), backend_config(self._settings), self.library
        )

    def context(self, folder: Path, config: ModelConfig, content: bytes, filename: str = "model.plan") -> ModelContext:
        version = folder / config.name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version / filename).write_bytes(content)
        return ModelContext(
            name=config.name,
            version=1,
            generation=1,
            config=config,
            model_directory=version.parent,
            version_directory=version,
            placements=(placement(config),),
            log=lambda level, message: self.logged.append((level, message)),
            devices=self.devices,
        )

    def warnings(self) -> list[str]:
        return [message for level, message in self.logged if level == "warning"]


def placement(config: ModelConfig, number: int = 0) -> InstancePlacement:
    profiles = config.instance_group[0].profile if config.instance_group else ()
    return InstancePlacement(name=f"{config.name}_{number}", kind=InstanceKind.KIND_GPU, group=config.name, profiles=profiles)


def config_of(*, inputs: Kinds, outputs: Kinds, profile: tuple[str, ...] = (), **fields: Any) -> ModelConfig:
    return ModelConfig(
        name="m",
        backend="tensorrt",
        platform="tensorrt_plan",
        input=tuple(ModelInput(name=name, data_type=kind, dims=dims) for name, (kind, dims) in inputs.items()),
        output=tuple(ModelOutput(name=name, data_type=kind, dims=dims) for name, (kind, dims) in outputs.items()),
        instance_group=(InstanceGroup(name="m", kind=InstanceKind.KIND_GPU, gpus=(0,), count=1, profile=profile),),
        **fields,
    )


def double_config(**fields: Any) -> ModelConfig:
    return config_of(inputs={"x": (FP32, (4,))}, outputs={"y": (FP32, (4,))}, **{"max_batch_size": 4, **fields})


def writes(content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.plan").write_bytes(content)

    return write


def rows(*values: float) -> np.ndarray[Any, Any]:
    """A row of four for each value."""
    return np.repeat(np.asarray(values, np.float32)[:, None], 4, axis=1)
