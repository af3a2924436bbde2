"""Queries NVIDIA's driver about the GPUs. Blocking; any thread. Needs no CUDA installation, and no GPU to be imported."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tpy.errors import Internal

_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
_MINOR = 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR


class DeviceMemory(NamedTuple):
    """Bytes, of all processes together."""

    used: int
    total: int


def compute_capability(device_id: int) -> tuple[int, int]:
    """For example (9, 0). Raises Internal when there is no driver or no such device."""
    with _device(device_id) as (driver, device):
        major, minor = ctypes.c_int(), ctypes.c_int()
        _require(driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device), device_id)
        _require(driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device), device_id)
    return major.value, minor.value


def memory(device_id: int) -> DeviceMemory:
    """The used and total memory of the device. Makes the device's context in this process, which runtimes that compute there
    share.

    Raises Internal when there is no driver or no such device.
    """
    with _device(device_id) as (driver, device):
        context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        _require(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), device_id)
        try:
            _require(driver.cuCtxPushCurrent_v2(context), device_id)
            code = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
            _require(code, device_id)
        finally:
            driver.cuDevicePrimaryCtxRelease_v2(device)
    return DeviceMemory(used=total.value - free.value, total=total.value)


@contextmanager
def _device(device_id: int) -> Iterator[tuple[ctypes.CDLL, ctypes.c_int]]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Internal(f"unable to get CUDA device properties for device {device_id}: {error}") from error
    device = ctypes.c_int()
    _require(driver.cuInit(0), device_id)
    _require(driver.cuDeviceGet(ctypes.byref(device), device_id), device_id)
    yield driver, device


def _require(code: int, device_id: int) -> None:
    if code != 0:
        raise Internal(f"unable to get CUDA device properties for device {device_id}: CUDA error {code}")
