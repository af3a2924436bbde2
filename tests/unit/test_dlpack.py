"""DLPack capsules: what they say, that nothing is copied, and that memory lives exactly as long as somebody has it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tpy import dlpack
from tpy.devices import DeviceArray, DeviceMemory
from tpy.messages import HOST, DataType, MemoryType, Place, Tensor
from tpy.testing import FakeDevice

DTYPES = [np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float32, np.float64, ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4), (1, 1, 5)])
def test_there_and_back(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    found = dlpack.describe(dlpack.of_array(array))
    assert (found.shape, found.dtype, found.device) == (shape, array.dtype, (dlpack.CPU, 0))
    assert found.address == array.ctypes.data or not array.size


def test_memory_lives_as_long_as_a_capsule_or_its_consumer() -> None:
    for consumed in (False, True):
        array = np.ones(4, np.float32)
        gone = weakref.ref(array)
        capsule: Any = dlpack.of_array(array)
        found = dlpack.describe(capsule) if consumed else None
        del array
        gc.collect()
        assert gone() is not None
        del capsule
        gc.collect()
        assert (gone() is not None) is consumed
        del found
        gc.collect()
        assert gone() is None


def test_a_consumer_may_let_go_while_an_exception_is_under_way() -> None:
    array = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="read-only"):
        np.from_dlpack(Tensor("x", DataType.FP32, array))[...] = 2 / np.zeros(0).sum(initial=1)
    with pytest.raises(ZeroDivisionError):
        _raise_with(np.from_dlpack(Tensor("x", DataType.FP32, array)))


def _raise_with(array: object) -> None:
    del array
    raise ZeroDivisionError


def test_what_may_not_be_written_is_copied_for_consumers_that_cannot_be_told() -> None:
    array = np.ones(4, np.float32)
    array.flags.writeable = False
    tensor = Tensor("x", DataType.FP32, array)
    assert np.shares_memory(np.from_dlpack(tensor), array), "NumPy knows read-only capsules"
    assert dlpack.describe(tensor.__dlpack__()).address != array.ctypes.data


def test_a_consumer_gets_the_copy_that_it_asks_for() -> None:
    array = np.ones(4, np.float32)
    tensor = Tensor("x", DataType.FP32, array)
    for writeable in (True, False):
        array.flags.writeable = writeable
        copied = np.from_dlpack(tensor, copy=True)
        assert np.array_equal(copied, array)
        assert not np.shares_memory(copied, array), "whoever asks for a copy may write to it"
    with pytest.raises(BufferError, match="has to be copied"):
        tensor.__dlpack__(copy=False)
    there = DeviceArray(FakeDevice(0).allocate(8), (2,), np.dtype(np.float32))
    with pytest.raises(BufferError, match="copy it yourself"):
        there.__dlpack__(copy=True)


def test_a_consumer_that_wants_another_device_is_refused() -> None:
    tensor = Tensor("x", DataType.FP32, np.ones(4, np.float32))
    assert np.array_equal(np.from_dlpack(tensor, device="cpu"), tensor.array)
    with pytest.raises(BufferError, match=r"device \(1, 0\), and cannot be given on \(2, 0\)"):
        tensor.__dlpack__(dl_device=(dlpack.CUDA, 0))
    there = DeviceArray(FakeDevice(0).allocate(8), (2,), np.dtype(np.float32))
    with pytest.raises(BufferError, match="cannot be given on"):
        there.__dlpack__(dl_device=(dlpack.CUDA, 1))


def test_what_no_capsule_can_hold() -> None:
    strings = Tensor("x", DataType.BYTES, np.array([b"a"], object))
    with pytest.raises(BufferError, match="string tensors"):
        strings.__dlpack__()
    with pytest.raises(BufferError, match="must be a DLPack capsule"):
        dlpack.describe(object())
    with pytest.raises(BufferError, match="not contiguous"):
        dlpack.describe(np.ones((4, 4), np.float32).T)
    with pytest.raises(BufferError, match="not supported"):
        dlpack.describe(np.ones(2, np.complex64))
    used = dlpack.of_array(np.ones(2))
    dlpack.describe(used)
    with pytest.raises(BufferError, match="consumed before"):
        dlpack.describe(used)


def test_a_tensor_says_where_it_is() -> None:
    host = Tensor("x", DataType.FP32, np.ones(2, np.float32))
    assert (host.place, host.__dlpack_device__()) == (HOST, (dlpack.CPU, 0))
    device = FakeDevice(3)
    device.dlpack_type = dlpack.CUDA  # nobody may look at it here
    array = DeviceArray(device.allocate(8), (2,), np.dtype(np.float32))
    tensor = Tensor("x", DataType.FP32, array.as_array())
    assert tensor.place == Place(MemoryType.GPU, 3)
    assert tensor.__dlpack_device__() == (dlpack.CUDA, 3)
    assert dlpack.describe(tensor.__dlpack__())[:4] == (array.address, (2,), np.dtype(np.float32), (dlpack.CUDA, 3))


def test_a_capsule_keeps_memory_of_a_device() -> None:
    device = FakeDevice(0)
    memory: DeviceMemory | None = device.allocate(16)
    assert memory is not None
    capsule = DeviceArray(memory, (4,), np.dtype(np.int32)).__dlpack__()
    memory = None
    gc.collect()
    assert device.counts["open"] == 1
    del capsule
    gc.collect()
    assert device.counts["open"] == 0
