"""Arrays on devices, pools and their fallbacks, on a fake device; and the CUDA device on a driver that is none."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fake_driver import FakeDriver
from tpy.devices import Device, DeviceArray, Devices
from tpy.devices.core.ranges import ALIGNMENT, Ranges
from tpy.devices.cuda import CudaDevice
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy.testing import FakeDevice

ARRAY = np.arange(24, dtype=np.float32).reshape(4, 3, 2)


def devices_of(device: Device | None = None, *, pinned: int = 1 << 16, pool: int = 1 << 16) -> Devices:
    device = device or FakeDevice(0)
    return Devices([device], pinned_pool_bytes=pinned, cuda_pool_bytes={device.id: pool})


@pytest.fixture(params=["fake", "cuda"])
def devices(request: pytest.FixtureRequest) -> Devices:
    return devices_of(FakeDevice(0) if request.param == "fake" else CudaDevice(0, FakeDriver()))


def test_an_array_answers_as_numpy_does(devices: Devices) -> None:
    there = devices.to_device(ARRAY, 0)
    assert (there.shape, there.ndim, there.size, there.nbytes, len(there)) == (ARRAY.shape, 3, 24, 96, 4)
    for part in (
        lambda array: array,
        lambda array: array.reshape(2, 12),
        lambda array: array.reshape((-1, 6)),
        lambda array: array.reshape(-1)[3:20],
        lambda array: array[1:3],
        lambda array: array[2],
        lambda array: array[-1][1:],
        lambda array: array[None],
        lambda array: array[3:2],
    ):
        found = devices.to_host(part(there))
        assert found.shape == part(ARRAY).shape
        assert (found == part(ARRAY)).all()
    with pytest.raises(ValueError, match="cannot reshape array of size 24 into shape"):
        there.reshape(5, 5)
    for key in (slice(0, 4, 2), 7, "x"):
        with pytest.raises(IndexError):
            there[key]
    with pytest.raises(TypeError, match="copy it with to_host"):
        np.asarray(there)


def test_rows_of_host_and_device_are_joined(devices: Devices) -> None:
    joined = devices.concatenate([devices.to_device(ARRAY[:1], 0), ARRAY[1:3], devices.to_device(ARRAY[3:], 0)], 0)
    assert (devices.to_host(joined) == ARRAY).all()


def test_pools_take_back_what_nobody_has(devices: Devices) -> None:
    there = devices.to_device(ARRAY, 0)
    row = there[1]
    here = devices.to_host(there)
    assert (devices.pool_used_bytes(0), devices.pinned.used_bytes) == (ALIGNMENT, ALIGNMENT)
    assert devices.pinned.is_pinned(here)
    assert not devices.pinned.is_pinned(ARRAY)
    last = here[-1]
    del there, here
    gc.collect()
    assert (devices.pool_used_bytes(0), devices.pinned.used_bytes) == (ALIGNMENT, ALIGNMENT)
    del row, last
    gc.collect()
    assert (devices.pool_used_bytes(0), devices.pinned.used_bytes) == (0, 0)


def test_beyond_the_pools_it_goes_on_with_one_warning_each(caplog: pytest.LogCaptureFixture) -> None:
    devices = devices_of(pinned=ALIGNMENT, pool=ALIGNMENT)
    kept = [devices.to_host(devices.to_device(ARRAY, 0)) for _ in range(2)]
    more = [devices.to_device(ARRAY, 0) for _ in range(3)]
    assert all((array == ARRAY).all() for array in kept)
    assert [devices.pinned.is_pinned(array) for array in kept] == [True, False]
    assert devices.to_host(more[-1]).shape == ARRAY.shape
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "failed to allocate pinned system memory, falling back to non-pinned system memory",
        "Failed to allocate CUDA memory with byte size 96 on GPU 0: the pool is full; falling back to other memory",
    ]


def test_without_a_pool(caplog: pytest.LogCaptureFixture) -> None:
    devices = devices_of(pinned=0, pool=0)
    for _ in range(2):
        assert (devices.to_host(devices.to_device(ARRAY, 0)) == ARRAY).all()
    assert (devices.pinned.total_bytes, devices.pinned.used_bytes, devices.pool_used_bytes(0)) == (0, 0, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "failed to allocate pinned system memory: no pinned memory pool, falling back to non-pinned system memory"
    ]


def test_a_device_without_memory_and_one_that_is_not_there() -> None:
    devices = devices_of(FakeDevice(0, memory_bytes=1 << 16))
    with pytest.raises(Unavailable, match="out of memory"):
        devices.allocate(0, 1 << 17)
    with pytest.raises(Unavailable, match="there is no GPU 1"):
        devices.to_device(ARRAY, 1)


@given(st.lists(st.integers(min_value=0, max_value=5000), max_size=40), st.randoms(use_true_random=False))
def test_ranges_never_overlap_and_join_again(sizes: list[int], random: Any) -> None:
    ranges = Ranges(16 * 1024)
    held: dict[int, int] = {}
    for size in sizes:
        begin = ranges.take(size)
        if begin is None:
            free = [0] * (16 * 1024 // ALIGNMENT)
            for at, length in held.items():
                for block in range(at // ALIGNMENT, -(-(at + max(1, length)) // ALIGNMENT)):
                    free[block] = 1
            runs = "".join(map(str, free)).split("1")
            assert max(map(len, runs)) * ALIGNMENT < max(1, size), "there was room"
        else:
            assert begin % ALIGNMENT == 0
            assert begin + size <= ranges.size
            assert all(begin + size <= at or at + length <= begin for at, length in held.items())
            held[begin] = size
        if held and random.random() < 0.5:
            gone = random.choice(list(held))
            ranges.give_back(gone)
            del held[gone]
    for at in held:
        ranges.give_back(at)
    assert ranges.used == 0
    assert ranges.take(ranges.size) == 0


ADD_ONE = """
import sys
import numpy as np
from tpy.testing.fake_device import FakeDevice
device, handle, offset, size = FakeDevice(0), bytes.fromhex(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
memory = device.open_ipc(handle)
found = np.empty(size, np.uint8)
device.copy_out(found, memory.address + offset)
device.copy_in(memory.address + offset, found + np.uint8(1))
"""


def test_another_process_opens_memory_by_its_handle() -> None:
    devices = devices_of()
    padding = devices.to_device(ARRAY, 0)
    there = devices.to_device(np.arange(5, dtype=np.uint8), 0)
    address = devices.get(0).export_ipc(there.address)
    assert (len(address.handle), address.offset) == (64, ALIGNMENT), "a handle is of the whole pool"
    arguments = [address.handle.hex(), str(address.offset), str(there.nbytes)]
    subprocess.run([sys.executable, "-c", ADD_ONE, *arguments], check=True, timeout=60)
    assert devices.to_host(there).tolist() == [1, 2, 3, 4, 5]
    del padding


@pytest.mark.parametrize("handle", [b"", b"x" * 64, b"tpy-fake" + b"\xff" * 56])
def test_handles_that_are_none(handle: bytes) -> None:
    with pytest.raises(InvalidArgument):
        FakeDevice(0).open_ipc(handle)


def test_the_cuda_device_gives_everything_back() -> None:
    driver = FakeDriver()
    device = CudaDevice(0, driver)
    stream, memory, pinned = device.stream(), device.allocate(100), device.allocate_pinned(100)
    pinned[:] = 7
    device.copy_in(memory.address, pinned, stream)
    stream.synchronize()
    back = np.empty(100, np.uint8)
    device.copy_out(back, memory.address)
    assert (back == 7).all()
    opened = device.open_ipc(device.export_ipc(memory.address + 10).handle)
    assert (opened.address, opened.size, device.export_ipc(memory.address + 10).offset) == (memory.address, 100, 10)
    del stream, memory, pinned, opened
    gc.collect()
    assert list(driver.open.values()) == ["stream"], "the one that this thread copies in"
    assert driver.contexts == []


def test_errors_of_the_driver() -> None:
    driver = FakeDriver(memory_bytes=1000)
    device = CudaDevice(0, driver)
    with pytest.raises(Unavailable, match=r"GPU 0: cuMemAlloc_v2: out of memory"):
        device.allocate(2000)
    with pytest.raises(InvalidArgument, match="cuIpcOpenMemHandle_v2"):
        device.open_ipc(b"x" * 64)
    with pytest.raises(InvalidArgument):
        device.open_ipc(b"x")
    driver.lost = True
    with pytest.raises(Internal, match="device lost"):
        device.stream()
    with pytest.raises(Internal):
        CudaDevice(0, driver)


def test_without_memory_that_can_be_pinned(caplog: pytest.LogCaptureFixture) -> None:
    device = CudaDevice(0, FakeDriver(memory_bytes=1000))
    devices = Devices([device], pinned_pool_bytes=5000, cuda_pool_bytes={0: 0})
    assert devices.pinned.allocate(10).size == 10
    assert [record.getMessage() for record in caplog.records] == [
        "Unable to allocate pinned system memory, pinned memory pool will not be available: GPU 0: cuMemHostAlloc: out of memory",
        "failed to allocate pinned system memory: no pinned memory pool, falling back to non-pinned system memory",
    ]
    assert (devices.pinned.total_bytes, devices.pinned.used_bytes) == (5000, 0), "as Triton's metrics say it"


def test_an_array_is_told_from_numpys() -> None:
    assert isinstance(devices_of().to_device(ARRAY, 0).as_array(), DeviceArray)


def test_a_graph_repeats_what_was_captured_with_the_memory_that_it_was_captured_with() -> None:
    driver = FakeDriver()
    device = CudaDevice(0, driver)
    stream = device.stream()
    source, target = device.allocate(4), device.allocate(4)
    with device.current():
        graph = device.capture(stream, lambda: device.copy_within(target.address, source.address, 4, stream))
    out = np.zeros(4, np.uint8)
    for value in (3, 5):
        device.copy_in(source.address, np.full(4, value, np.uint8))
        device.copy_out(out, target.address)
        assert out[0] != value
        graph.launch(stream)
        device.copy_out(out, target.address)
        assert out.tolist() == [value] * 4
    assert driver.contexts == []
    kept = len(driver.open)
    del graph
    assert len(driver.open) == kept - 1


def test_a_capture_that_fails_ends() -> None:
    driver = FakeDriver()
    device = CudaDevice(0, driver)
    stream = device.stream()

    def record() -> None:
        raise Internal("no such work")

    kept = len(driver.open)
    with pytest.raises(Internal, match="no such work"):
        device.capture(stream, record)
    assert driver.captured is None
    assert len(driver.open) == kept


def test_priorities_of_streams() -> None:
    driver = FakeDriver()
    device = CudaDevice(0, driver)
    streams = [device.stream(priority) for priority in (0, 1, -1)]
    assert len(streams) == len(driver.priorities)
    assert driver.priorities == [0, -5, 0]


def test_arrays_on_a_device_take_the_shapes_and_rows_that_numpy_takes() -> None:
    array = DeviceArray(FakeDevice(0).allocate(24), (2, 3), np.dtype(np.float32))
    assert array.reshape(np.int64(6)).shape == array.reshape(-1).shape == (6,)
    assert array.reshape(np.array([3, 2])).shape == (3, 2)
    assert array[np.int64(-1)].address == array[1].address
    for shape in ((-2, -3), (-6,), (-1, -6)):
        with pytest.raises(ValueError, match="cannot reshape"):
            array.reshape(shape)
