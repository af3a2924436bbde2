"""Inputs and outputs of requests in regions of shared memory: of this machine, or of a GPU of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from tpy.devices import Device, DeviceMemory
from tpy.errors import TpyError
from tpy.frontends.binary_tensor import write_binary
from tpy.messages import Tensor
from tpy_tools.load.calls import Parameter
from tpy_tools.load.server import MeasuredServer, ServerError

_FOLDER = Path("/dev/shm")
_ALIGNMENT = 64


class NoSharedMemory(Exception):
    """Shared memory that cannot be had. `str()` says why."""


class Memory(Protocol):
    """Makes regions and registers them with a server. Raises NoSharedMemory, and ServerError."""

    def create(self, name: str, content: bytes, size: int) -> None:
        """Make a region of `size` bytes, which begins with the content."""
        ...

    def register(self, server: MeasuredServer, name: str) -> None:
        """Register a region that was made."""
        ...

    def unregister(self, server: MeasuredServer, name: str) -> None:
        """End its registration."""
        ...

    def close(self) -> None:
        """Give all regions back."""
        ...


class SystemMemory:
    """Files in /dev/shm."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def create(self, name: str, content: bytes, size: int) -> None:
        """As `Memory`."""
        self._sizes[name] = size
        try:
            with (_FOLDER / name).open("wb") as file:
                file.write(content)
                file.truncate(size)
        except OSError as error:
            raise NoSharedMemory(f"{size} bytes of shared memory cannot be allocated: {error}") from error

    def register(self, server: MeasuredServer, name: str) -> None:
        """As `Memory`."""
        server.register_system(name, f"/{name}", self._sizes[name])

    def unregister(self, server: MeasuredServer, name: str) -> None:
        """As `Memory`."""
        server.unregister_system(name)

    def close(self) -> None:
        """As `Memory`."""
        for name in self._sizes:
            (_FOLDER / name).unlink(missing_ok=True)


class CudaMemory:
    """Allocations on a GPU, which the server opens by their handles."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._regions: dict[str, DeviceMemory] = {}

    @classmethod
    def of_gpu(cls, number: int) -> CudaMemory:
        """On this GPU of the machine. Raises NoSharedMemory if the machine does not have it."""
        from tpy.devices.cuda import CudaDevice

        try:
            return cls(CudaDevice(number))
        except TpyError as error:
            raise NoSharedMemory(f"--shared-memory cuda needs a GPU on this machine: {error.message}") from error

    def create(self, name: str, content: bytes, size: int) -> None:
        """As `Memory`."""
        try:
            memory = self._regions[name] = self._device.allocate(size)
            self._device.copy_in(memory.address, np.frombuffer(content, np.uint8))
        except TpyError as error:
            raise NoSharedMemory(f"{size} bytes of GPU memory cannot be allocated: {error.message}") from error

    def register(self, server: MeasuredServer, name: str) -> None:
        """As `Memory`."""
        memory = self._regions[name]
        server.register_cuda(name, self._device.export_ipc(memory.address).handle, self._device.id, memory.size)

    def unregister(self, server: MeasuredServer, name: str) -> None:
        """As `Memory`."""
        server.unregister_cuda(name)

    def close(self) -> None:
        """As `Memory`."""
        self._regions.clear()


class SharedTensors:
    """Two regions that a server on this machine has registered: one of inputs, one of outputs.

    A context manager: `inputs` collects tensors, and entering makes and registers the regions; leaving takes everything back. All
    requests have the same region of outputs: the values there are nobody's, as with perf_analyzer.
    """

    def __init__(self, memory: Memory, server: MeasuredServer, outputs: Sequence[str], output_bytes: int) -> None:
        name = f"tpy_perf_{os.getpid()}"
        self._memory = memory
        self._server = server
        self._input_name, self._output_name = f"{name}_inputs", f"{name}_outputs"
        self._output_bytes = output_bytes * max(1, len(outputs))
        self._content = bytearray()
        self._registered: list[str] = []
        self.outputs: Mapping[str, Mapping[str, Parameter]] = {
            output: _region(self._output_name, number * output_bytes, output_bytes) for number, output in enumerate(outputs)
        }

    def inputs(self, tensors: Sequence[Tensor]) -> dict[str, Mapping[str, Parameter]]:
        """Take tensors. Returns the regions of each."""
        found: dict[str, Mapping[str, Parameter]] = {}
        for tensor in tensors:
            content = bytes(write_binary(tensor.array, tensor.datatype))
            found[tensor.name] = _region(self._input_name, len(self._content), len(content))
            self._content += content + bytes(-len(content) % _ALIGNMENT)
        return found

    def __enter__(self) -> SharedTensors:
        content = bytes(self._content)
        try:
            for name, filled, size in (
                (self._input_name, content, max(1, len(content))),
                (self._output_name, b"", self._output_bytes),
            ):
                self._memory.create(name, filled, size)
                self._memory.register(self._server, name)
                self._registered.append(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Unregister the regions, and give the memory back."""
        for name in self._registered:
            try:
                self._memory.unregister(self._server, name)
            except ServerError:
                continue  # the server has gone
        self._registered.clear()
        self._memory.close()


def _region(name: str, offset: int, size: int) -> Mapping[str, Parameter]:
    return {"shared_memory_region": name, "shared_memory_offset": offset, "shared_memory_byte_size": size}
