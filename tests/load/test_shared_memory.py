"""Regions of shared memory, as a server would open them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpy.messages import DataType, Tensor
from tpy.testing import FakeDevice
from tpy_tools.load import MeasuredServer, ServerError, Target
from tpy_tools.load.shared_memory import CudaMemory, Memory, NoSharedMemory, SharedTensors, SystemMemory

FIRST = Tensor("A", DataType.FP32, np.arange(5, dtype=np.float32))
SECOND = Tensor("B", DataType.INT64, np.array([7, 8]))


class Registrations(MeasuredServer):
    """A server that keeps what is registered."""

    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__(Target(host="127.0.0.1", port=1))
        self.regions: dict[str, tuple[Any, ...]] = {}
        self._refuses = refuses

    def register_system(self, name: str, key: str, size: int) -> None:
        self._keep(name, key, size)

    def register_cuda(self, name: str, handle: bytes, device: int, size: int) -> None:
        self._keep(name, handle, device, size)

    def _keep(self, name: str, *region: Any) -> None:
        if self._refuses and self.regions:
            raise ServerError("no more regions")
        self.regions[name] = region

    def unregister_system(self, name: str) -> None:
        del self.regions[name]

    unregister_cuda = unregister_system


def content_of(memory: Memory, region: tuple[Any, ...]) -> bytes:
    """The bytes of a registered region, by what the server was told."""
    if isinstance(memory, SystemMemory):
        key, size = region
        content = Path(f"/dev/shm{key}").read_bytes()
    else:
        handle, device, size = region
        server = FakeDevice(device)
        opened = server.open_ipc(handle)
        target = np.empty(size, np.uint8)
        server.copy_out(target, opened.address)
        content = target.tobytes()
    assert len(content) == size
    return content


@pytest.mark.parametrize("memory", [SystemMemory(), CudaMemory(FakeDevice(0))], ids=["system", "cuda"])
def test_inputs_are_where_the_server_is_told(memory: Memory) -> None:
    server = Registrations()
    shared = SharedTensors(memory, server, ["X", "Y"], 1000)
    places = {**shared.inputs([FIRST]), **shared.inputs([SECOND])}
    with shared:
        (inputs, outputs) = server.regions
        content = content_of(memory, server.regions[inputs])
        for tensor in (FIRST, SECOND):
            place = places[tensor.name]
            assert place["shared_memory_region"] == inputs
            offset, size = place["shared_memory_offset"], place["shared_memory_byte_size"]
            assert isinstance(offset, int)
            assert isinstance(size, int)
            assert offset % 64 == 0
            assert content[offset : offset + size] == tensor.array.tobytes()
        assert len(content_of(memory, server.regions[outputs])) == 2000
        assert [place["shared_memory_offset"] for place in shared.outputs.values()] == [0, 1000]
    assert server.regions == {}
    assert not list(Path("/dev/shm").glob(f"{inputs}*"))


def test_a_refused_region_leaves_nothing_behind() -> None:
    device = FakeDevice(0)
    memory, server = CudaMemory(device), Registrations(refuses=True)
    shared = SharedTensors(memory, server, ["X"], 10)
    shared.inputs([FIRST])
    with pytest.raises(ServerError, match="no more regions"), shared:
        raise AssertionError("it was entered")
    assert server.regions == {}
    assert device.counts["open"] == 0


def test_memory_that_cannot_be_had_is_said() -> None:
    shared = SharedTensors(CudaMemory(FakeDevice(0, memory_bytes=64)), Registrations(), ["X"], 1000)
    with pytest.raises(NoSharedMemory, match="1000 bytes of GPU memory cannot be allocated: GPU 0: out of memory"), shared:
        raise AssertionError("it was entered")
