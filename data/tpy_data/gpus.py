"""Queries NVIDIA's driver about the GPUs. Blocking; any thread. Needs no CUDA installation, and no GPU to be imported."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tpy.errors import Internal, TpyError

_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
_MINOR = 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE; also when CUDA_VISIBLE_DEVICES hides all
_STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY: what images for building have in place of a driver
_NAME_BYTES = 256
_UUID_BYTES = 16


class GpuMemory(NamedTuple):
    """Bytes, of all processes together."""

    used: int
    total: int


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. `id` is CUDA's number for it in this process; `compute_capability` None: its driver does not say; `uuid` is
    that of `nvidia-smi -L`, "" where the driver does not say."""

    id: int
    compute_capability: tuple[int, int] | None = None
    uuid: str = ""
    name: str = ""


class GpuInventory(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that this process may use, in CUDA's order. `trouble`: there are devices, but their driver cannot be used, for
    this reason."""

    gpus: tuple[Gpu, ...] = ()
    trouble: str = ""


NO_GPUS = GpuInventory()


def discover(devices: Path = Path("/dev")) -> GpuInventory:
    """Asks the driver, which goes by CUDA_VISIBLE_DEVICES. `devices` has the device files, which tell a machine without GPUs from
    one without a working driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        present = any(devices.glob("nvidia[0-9]*"))
        return GpuInventory(trouble=f"the driver's library cannot be loaded: {error}" if present else "")
    count = ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code in (_NO_DEVICE, _STUB_LIBRARY):
        return GpuInventory()
    if code != 0:
        return GpuInventory(trouble=f"the driver refuses: CUDA error {code}")
    return GpuInventory(gpus=tuple(_describe(number) for number in range(count.value)))


def compute_capability(device_id: int) -> tuple[int, int]:
    """For example (9, 0). Raises Internal when there is no driver or no such device."""
    with _device(device_id) as (driver, device):
        major, minor = ctypes.c_int(), ctypes.c_int()
        _require(driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device), device_id)
        _require(driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device), device_id)
    return major.value, minor.value


def memory(device_id: int) -> GpuMemory:
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
    return GpuMemory(used=total.value - free.value, total=total.value)


def _describe(device_id: int) -> Gpu:
    """A device that the driver has counted may still have failed: then only its number is known."""
    try:
        capability = compute_capability(device_id)
        with _device(device_id) as (driver, device):
            name, raw = ctypes.create_string_buffer(_NAME_BYTES), ctypes.create_string_buffer(_UUID_BYTES)
            _require(driver.cuDeviceGetName(name, _NAME_BYTES, device), device_id)
            _require(driver.cuDeviceGetUuid(raw, device), device_id)
    except TpyError:
        return Gpu(id=device_id)
    identity = uuid.UUID(bytes=raw.raw)
    return Gpu(id=device_id, compute_capability=capability, uuid=f"GPU-{identity}", name=name.value.decode("utf-8", "replace"))


@contextmanager
def _device(device_id: int) -> Iterator[tuple[Any, ctypes.c_int]]:
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
