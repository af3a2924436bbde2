"""The one thing to know of a GPU before its model is chosen, asked of NVIDIA's driver."""

from __future__ import annotations

import ctypes

from tpy.errors import Internal

_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
_MINOR = 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR


def compute_capability(device_id: int) -> str:
    """For example "9.0". Raises Internal when there is no driver or no such device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Internal(f"unable to get CUDA device properties for device {device_id}: {error}") from error
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    for code in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), device_id),
        driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device),
        driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device),
    ):
        if code != 0:
            raise Internal(f"unable to get CUDA device properties for device {device_id}: CUDA error {code}")
    return f"{major.value}.{minor.value}"
