"""Memory, streams and graphs of a GPU."""

from __future__ import annotations

import multiprocessing

import numpy as np

from tpy.devices import Devices
from tpy.devices.cuda import CudaDevice

ARRAY = np.arange(4096, dtype=np.float32).reshape(64, 64)


def test_arrays_go_there_and_back(devices: Devices) -> None:
    there = devices.to_device(ARRAY, 0)
    assert devices.to_host(there[8:16]).tolist() == ARRAY[8:16].tolist()


def test_copies_of_a_stream_are_there_when_it_is_synchronized(device: CudaDevice) -> None:
    for priority in (-1, 0, 1):
        stream = device.stream(priority)
        memory, pinned = device.allocate(ARRAY.nbytes), device.allocate_pinned(ARRAY.nbytes)
        pinned[:] = ARRAY.reshape(-1).view(np.uint8)
        device.copy_in(memory.address, pinned, stream)
        back = device.allocate_pinned(ARRAY.nbytes)
        device.copy_out(back, memory.address, stream)
        stream.synchronize()
        assert back.tobytes() == ARRAY.tobytes()


def test_a_graph_repeats_what_was_captured(device: CudaDevice) -> None:
    stream = device.stream()
    source, target = device.allocate(4096), device.allocate(4096)
    graph = device.capture(stream, lambda: device.copy_within(target.address, source.address, 4096, stream))
    for value in (1, 2):
        device.copy_in(source.address, np.full(4096, value, np.uint8))
        graph.launch(stream)
        stream.synchronize()
        out = np.zeros(4096, np.uint8)
        device.copy_out(out, target.address)
        assert set(out.tolist()) == {value}


def _read(handle: bytes, offset: int, size: int) -> bytes:
    device = CudaDevice(0)
    memory = device.open_ipc(handle)
    out = np.zeros(size, np.uint8)
    device.copy_out(out, memory.address + offset)
    return out.tobytes()


def test_another_process_reads_the_memory(devices: Devices, device: CudaDevice) -> None:
    there = devices.to_device(ARRAY, 0)
    where = device.export_ipc(there.address)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_read, (where.handle, where.offset, ARRAY.nbytes)) == ARRAY.tobytes()
