"""Moves tensors to the device of a program, and back to the host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from tpy.errors import Internal
from tpy_data.backends.pytorch.program import first_line
from tpy_data.backends.pytorch.tensors import Array, to_array, to_tensor


class Device(Protocol):
    """The device of one instance. Used in the instance's thread only."""

    def entered(self) -> AbstractContextManager[Any]:
        """Returns the context that an execution runs in."""
        ...

    def put(self, array: Array, *, may_be_written: bool) -> torch.Tensor:
        """The array as a tensor on the device."""
        ...

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[Array]:
        """The tensors as arrays on the host; nothing writes them any more."""
        ...

    def after(self) -> None:
        """An execution is over."""
        ...

    def failure(self, error: Exception) -> Internal:
        """Returns the error of an execution that raised."""
        ...


class HostDevice:
    """The host: tensors are the memory of requests wherever they can be."""

    def __init__(self, *, copies_outputs: bool = False) -> None:
        self._copies_outputs = copies_outputs

    def entered(self) -> AbstractContextManager[Any]:
        """As `Device`."""
        return nullcontext()

    def put(self, array: Array, *, may_be_written: bool) -> torch.Tensor:
        """As `Device`."""
        return to_tensor(array, may_be_written=may_be_written)

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[Array]:
        """As `Device`. A model that chooses its devices itself (KIND_MODEL) may give tensors from anywhere."""
        if self._copies_outputs:
            return [to_array(tensor.cpu()).copy() for tensor in tensors]
        return [to_array(tensor.cpu()) for tensor in tensors]

    def after(self) -> None:
        """As `Device`."""

    def failure(self, error: Exception) -> Internal:
        """As `Device`."""
        return Internal(f"PyTorch execute failure: {first_line(error)}")


class CudaDevice:
    """A GPU, with a stream of the instance's own: copies to and from pinned memory run in it, beside the host's work.

    `cuda` is `torch.cuda`, or what stands for it in tests; `pinned` false keeps staging in pageable memory.
    """

    def __init__(
        self, device: torch.device, *, cudnn: bool, cleans_cache: bool, cuda: Any = torch.cuda, pinned: bool = True
    ) -> None:
        self._device = device
        self._cudnn = cudnn
        self._cuda = cuda
        self._cleans_cache = cleans_cache
        self._pinned = pinned
        self._stream = cuda.Stream(device=device)

    def entered(self) -> AbstractContextManager[Any]:
        """As `Device`. cuDNN is on or off for the whole process: as in Triton, who runs says which."""
        torch.backends.cudnn.enabled = self._cudnn
        return self._cuda.stream(self._stream)  # type: ignore[no-any-return]  # torch is not typed for us

    def put(self, array: Array, *, may_be_written: bool) -> torch.Tensor:
        """As `Device`. The copy to the device is not waited for: what the program does with the tensor is in the same stream."""
        tensor = to_tensor(array, may_be_written=False)
        return self._staging(tensor).copy_(tensor).to(self._device, non_blocking=True)

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[Array]:
        """As `Device`. All copies are under way before the first is waited for."""
        staged = [self._staging(tensor).copy_(tensor, non_blocking=True) for tensor in tensors]
        self._stream.synchronize()
        return [to_array(tensor) for tensor in staged]

    def after(self) -> None:
        """As `Device`."""
        if self._cleans_cache:
            self._cuda.empty_cache()

    def failure(self, error: Exception) -> Internal:
        """As `Device`. What the allocator holds in reserve is given back when there was not enough of it."""
        if isinstance(error, torch.OutOfMemoryError):
            self._cuda.empty_cache()
            return Internal(f"PyTorch execute failure: out of memory on {self._device}: {first_line(error)}")
        return Internal(f"PyTorch execute failure: {first_line(error)}")

    def _staging(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pinned)
