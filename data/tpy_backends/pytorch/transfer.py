"""Moves tensors to the device of a program, and back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch

from tpy import dlpack
from tpy.backend import drain
from tpy.devices import Bytes, Device, DeviceArray, DeviceMemory, Devices
from tpy.errors import Internal
from tpy.messages import MemoryType, Place
from tpy_backends.pytorch.program import first_line
from tpy_backends.pytorch.tensors import DATATYPE_OF, Array, to_array, to_tensor

NOWHERE_ELSE: frozenset[Place] = frozenset()


class Transfer(Protocol):
    """The way of one instance's tensors. Used in the instance's thread only."""

    @property
    def takes(self) -> frozenset[Place]:
        """As `tpy.backend.DeviceInstance.takes`."""
        ...

    def entered(self) -> AbstractContextManager[Any]:
        """Returns the context that an execution runs in."""
        ...

    def put(self, array: Array | DeviceArray, *, may_be_written: bool) -> torch.Tensor:
        """The array as a tensor on the device."""
        ...

    def fetch(self, tensors: Sequence[torch.Tensor], stay: Sequence[bool]) -> list[Array | DeviceArray]:
        """The tensors as arrays, on the host unless they may stay where they are; nothing writes them any more."""
        ...

    def after(self) -> None:
        """An execution is over."""
        ...

    def failure(self, error: Exception) -> Internal:
        """Returns the error of an execution that raised. Raises InstanceFailure when the device failed."""
        ...


class HostTransfer:
    """On the host tensors are the memory of requests wherever they can be."""

    takes = NOWHERE_ELSE

    def __init__(self, *, copies_outputs: bool = False) -> None:
        self._copies_outputs = copies_outputs

    def entered(self) -> AbstractContextManager[Any]:
        """As `Transfer`."""
        return nullcontext()

    def put(self, array: Array | DeviceArray, *, may_be_written: bool) -> torch.Tensor:
        """As `Transfer`."""
        return to_tensor(_on_host(array), may_be_written=may_be_written)

    def fetch(self, tensors: Sequence[torch.Tensor], stay: Sequence[bool]) -> list[Array | DeviceArray]:
        """As `Transfer`. A model that chooses its devices itself (KIND_MODEL) may give tensors from anywhere."""
        if self._copies_outputs:
            return [to_array(tensor.cpu()).copy() for tensor in tensors]
        return [to_array(tensor.cpu()) for tensor in tensors]

    def after(self) -> None:
        """As `Transfer`."""

    def failure(self, error: Exception) -> Internal:
        """As `Transfer`."""
        return Internal(f"PyTorch execute failure: {first_line(error)}")


class DeviceTransfer:
    """To and from a GPU, in a stream of the instance's own: copies go through pinned memory, and run beside the host's work.
    Tensors that are on the GPU already are used where they are."""

    def __init__(
        self, devices: Devices, device_id: int, *, cudnn: bool, cleans_cache: bool, copies_outputs: bool = False
    ) -> None:
        """Raises Unavailable for a device that the server has not."""
        self.takes = frozenset({Place(MemoryType.GPU, device_id)})
        self._devices = devices
        self._device = devices.get(device_id)
        self._target = torch_device(self._device)
        self._cudnn = cudnn
        self._cleans_cache = cleans_cache
        self._copies_outputs = copies_outputs
        self._stream = self._device.stream()
        self._context: Any = nullcontext
        if self._target.type == "cuda":
            stream = torch.cuda.ExternalStream(self._stream.handle, device=self._target)
            self._context = lambda: torch.cuda.stream(stream)
        self._under_way: list[Bytes] = []
        """Memory that copies are made from."""

    def entered(self) -> AbstractContextManager[Any]:
        """As `Transfer`. cuDNN is on or off for the whole process: as in Triton, who runs says which."""
        torch.backends.cudnn.enabled = self._cudnn
        return self._context()  # type: ignore[no-any-return]  # torch is not typed for us

    def put(self, array: Array | DeviceArray, *, may_be_written: bool) -> torch.Tensor:
        """As `Transfer`. The copy to the device is not waited for: the program uses the tensor in the same stream."""
        if isinstance(array, DeviceArray):
            there = torch.from_dlpack(array)
            return there.clone() if may_be_written else there
        source = to_tensor(array, may_be_written=False)
        tensor = torch.empty(source.shape, dtype=source.dtype, device=self._target)
        if array.nbytes:
            staging = self._devices.pinned.allocate(array.nbytes)
            staging[...] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self._device.copy_in(tensor.data_ptr(), staging, self._stream)
            self._under_way.append(staging)
        return tensor

    def fetch(self, tensors: Sequence[torch.Tensor], stay: Sequence[bool]) -> list[Array | DeviceArray]:
        """As `Transfer`. All copies are under way before they are waited for, once; then the inputs' copies are over too."""
        found: list[Array | DeviceArray] = []
        for tensor, stays in zip(tensors, stay, strict=True):
            tensor = tensor.detach().contiguous()
            if tensor.device != self._target:
                found.append(to_array(tensor.cpu()).copy())
            elif stays:
                found.append(self._where_it_is(tensor.clone() if self._copies_outputs else tensor))
            else:
                found.append(self._to_host(tensor))
        self._finish()
        return found

    def after(self) -> None:
        """As `Transfer`."""
        if self._under_way:
            self._finish()
        if self._cleans_cache:
            torch.cuda.empty_cache()

    def failure(self, error: Exception) -> Internal:
        """As `Transfer`. What the allocator holds in reserve is given back when there was not enough of it."""
        if isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
            return Internal(f"PyTorch execute failure: out of memory on GPU {self._device.id}: {first_line(error)}")
        self._finish()
        return Internal(f"PyTorch execute failure: {first_line(error)}")

    def _finish(self) -> None:
        drain(self._stream, self._device.id)
        self._under_way.clear()

    def _to_host(self, tensor: torch.Tensor) -> Array:
        array = self._where_it_is(tensor)
        staging = self._devices.pinned.allocate(array.nbytes)
        self._under_way.append(staging)
        return array.to_host(staging, self._stream)

    def _where_it_is(self, tensor: torch.Tensor) -> DeviceArray:
        dtype = DATATYPE_OF[tensor.dtype].numpy
        memory = DeviceMemory(self._device, tensor.data_ptr(), tensor.nbytes, owner=tensor)
        return DeviceArray(memory, tuple(tensor.shape), dtype)


def torch_device(device: Device) -> torch.device:
    """PyTorch's name for a device of the server: the host, when the device only pretends to be one."""
    return torch.device("cpu") if device.dlpack_type == dlpack.CPU else torch.device("cuda", device.id)


def _on_host(array: Array | DeviceArray) -> Array:
    return array.to_host() if isinstance(array, DeviceArray) else array
