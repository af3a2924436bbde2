"""The GPU of this machine; without one the tests of this folder are skipped."""

from __future__ import annotations

import pytest

from tpy.devices import Devices
from tpy.devices.cuda import CudaDevice
from tpy.errors import TpyError


@pytest.fixture(scope="session")
def device() -> CudaDevice:
    try:
        return CudaDevice(0)
    except TpyError as error:
        pytest.skip(f"needs an NVIDIA GPU: {error.message}")


@pytest.fixture
def devices(device: CudaDevice) -> Devices:
    return Devices([device], pinned_pool_bytes=1 << 24, cuda_pool_bytes={0: 1 << 24})
