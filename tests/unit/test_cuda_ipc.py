"""The module by which processes without our packages share a GPU's memory, on a driver that is a Python object."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.fake_driver import FakeDriver
from tpy.devices import cuda_ipc
from tpy.devices.cuda_ipc import CudaSharing


def test_what_is_shared_can_be_opened() -> None:
    driver = FakeDriver()
    sharing = CudaSharing(driver)
    address = ctypes.c_uint64()
    assert driver.allocate(ctypes.pointer(address), 4096) == 0
    handle, offset = sharing.share(0, address.value + 256)
    assert (len(handle), offset) == (cuda_ipc.HANDLE_BYTES, 256)
    opened, size, close = sharing.open(0, handle)
    assert (opened, size) == (address.value, 4096)
    close()
    assert driver.contexts == [], "the thread's context is as it was"


@pytest.mark.parametrize("handle", [b"", b"short", bytes(64)])
def test_no_handle(handle: bytes) -> None:
    with pytest.raises(OSError, match=r"handle of|invalid argument"):
        CudaSharing(FakeDriver()).open(0, handle)


def test_what_is_not_the_devices_is_not_shared() -> None:
    with pytest.raises(OSError, match="cuMemGetAddressRange_v2: invalid argument"):
        CudaSharing(FakeDriver()).share(0, 4096)


def test_a_device_that_is_lost() -> None:
    driver = FakeDriver()
    sharing = CudaSharing(driver)
    driver.lost = True
    with pytest.raises(OSError, match="cuInit: device lost"):
        sharing.share(0, 4096)


@pytest.mark.parametrize("module", ["tpy/devices/cuda_ipc.py", "tpy/testing/fake_sharing.py"])
def test_a_process_needs_nothing_of_ours(module: str) -> None:
    path = Path(cuda_ipc.__file__).parents[2] / module
    code = f"import runpy, sys; runpy.run_path({str(path)!r}); assert not any(n == 'tpy' or n == 'numpy' for n in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False, timeout=30).returncode == 0
