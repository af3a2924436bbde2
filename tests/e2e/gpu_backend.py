"""A backend on the server's fake GPU. Its models add one to INPUT, or to each of its rows, which a decoupled one answers one by
one; whatever is there stays there."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpy.backend import (
    Backend,
    BackendCapabilities,
    BackendSettings,
    ExecutionBatch,
    ExecutionResult,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
    gather_where_it_is,
    scatter,
    stays_on_device,
)
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.devices import Array, DeviceArray, Devices
from tpy.messages import DataType, MemoryType, Place, Tensor


def create(settings: BackendSettings) -> Backend:
    return GpuBackend()


class GpuBackend:
    capabilities = BackendCapabilities(
        name="gpu",
        default_model_filename="",
        devices=frozenset({InstanceKind.KIND_GPU}),
        default_kind=InstanceKind.KIND_GPU,
        decoupled=True,
    )

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        return context.config

    def load(self, context: ModelContext) -> LoadedModel:
        return _Model(context.devices, decoupled=context.config.decoupled)

    def close(self) -> None:
        pass


class _Model:
    def __init__(self, devices: Devices, *, decoupled: bool) -> None:
        self.devices = devices
        self.decoupled = decoupled

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        return _Instance(self)

    def unload(self) -> None:
        pass


class _Instance:
    takes = frozenset({Place(MemoryType.GPU, 0)})

    def __init__(self, model: _Model) -> None:
        self._devices = model.devices
        self._decoupled = model.decoupled

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        (given,) = gather_where_it_is(batch.requests, self._devices, 0).values()
        array = given if isinstance(given, DeviceArray) else self._devices.to_device(given, 0)
        made = DeviceArray(self._devices.allocate(0, array.nbytes), array.shape, array.dtype)
        _elements(made)[...] = _elements(array) + np.float32(1)  # a kernel
        stays = stays_on_device(batch.requests, "OUTPUT")
        if not self._decoupled:
            return scatter(batch.requests, [Tensor("OUTPUT", DataType.FP32, self._given(made, stays=stays))], batches=True)
        for request in batch.requests:
            assert request.sender is not None
            for row in range(made.shape[0]):
                output = Tensor("OUTPUT", DataType.FP32, self._given(made[row : row + 1], stays=stays))
                request.sender.send(ExecutionResult([output]), final=False)
            request.sender.send(None, final=True)
        return ()

    def _given(self, array: DeviceArray, *, stays: bool) -> Array:
        return array.as_array() if stays else self._devices.to_host(array)

    def close(self) -> None:
        pass


def _elements(array: DeviceArray) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The memory itself."""
    return np.ctypeslib.as_array((ctypes.c_float * array.size).from_address(array.address)).reshape(array.shape)
