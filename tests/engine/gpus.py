"""Models on fake devices: those whose names begin with "gpu" are on device 0, "other" on device 1, all others on the host. Each
adds one to its input, where it is."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpy.backend import (
    BackendCapabilities,
    ExecutionBatch,
    ExecutionResult,
    InstancePlacement,
    ModelContext,
    gather,
    gather_where_it_is,
    scatter,
    stays_on_device,
)
from tpy.devices import DeviceArray, Devices
from tpy.messages import DataType, MemoryType, Place, Tensor
from tpy.testing import FakeDevice

from .fakes import ScriptedBackend, ScriptedInstance, ScriptedModel


class GpuBackend(ScriptedBackend):
    """`places` has, by model and execution, where each input was. `lawless`: outputs stay on the device, whatever is asked."""

    capabilities = BackendCapabilities(name="fake", default_model_filename="model.fake")

    def __init__(self, *, lawless: bool = False) -> None:
        super().__init__()
        self.fakes = (FakeDevice(0), FakeDevice(1))
        self.devices = Devices(self.fakes, pinned_pool_bytes=1 << 20)
        self.lawless = lawless
        self.places: list[tuple[str, list[MemoryType]]] = []

    def load(self, context: ModelContext) -> ScriptedModel:
        self.on_load(context)
        self.server = context.server
        return _Model(self, (context.name, context.version, context.generation))

    @property
    def copies(self) -> tuple[int, int, int]:
        """Copies to device 0, from it, and within it."""
        counts = self.fakes[0].counts
        return counts["in"], counts["out"], counts["within"]


class _Model(ScriptedModel):
    def create_instance(self, placement: InstancePlacement) -> ScriptedInstance:
        name = self.identity[0]
        assert isinstance(self.backend, GpuBackend)
        if name.startswith(("gpu", "other")):
            return _GpuInstance(self.backend, name, int(name.startswith("other")))
        return _HostInstance(self.backend, name)


class _HostInstance(ScriptedInstance):
    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        _note(self.backend, self.name, batch)
        (array,) = gather(batch.requests).values()
        return scatter(batch.requests, [Tensor("OUT", DataType.FP32, array + np.float32(1))], batches=True)


class _GpuInstance(ScriptedInstance):
    def __init__(self, backend: GpuBackend, name: str, device_id: int) -> None:
        super().__init__(backend, name)
        self.devices = backend.devices
        self.device_id = device_id
        self.takes = frozenset({Place(MemoryType.GPU, device_id)})

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        assert isinstance(self.backend, GpuBackend)
        _note(self.backend, self.name, batch)
        (given,) = gather_where_it_is(batch.requests, self.devices, self.device_id).values()
        array = given if isinstance(given, DeviceArray) else self.devices.to_device(given, self.device_id)
        made = DeviceArray(self.devices.allocate(self.device_id, array.nbytes), array.shape, array.dtype)
        _elements(made)[...] = _elements(array) + np.float32(1)  # a kernel
        stays = self.backend.lawless or stays_on_device(batch.requests, "OUT")
        output = made.as_array() if stays else self.devices.to_host(made)
        return scatter(batch.requests, [Tensor("OUT", DataType.FP32, output)], batches=True)


def _elements(array: DeviceArray) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The memory itself."""
    return np.ctypeslib.as_array((ctypes.c_float * array.size).from_address(array.address)).reshape(array.shape)


def _note(backend: ScriptedBackend, name: str, batch: ExecutionBatch) -> None:
    assert isinstance(backend, GpuBackend)
    places = [tensor.place.memory for request in batch.requests for tensor in request.inputs.values()]
    backend.places.append((name, places))
