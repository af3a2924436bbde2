"""Queries of NVIDIA's driver, against a fake one: the machines that run these tests have no GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from tpy.assembly import ServerOptions
from tpy.backend import InstancePlacement
from tpy.cli.serve import open_devices, visible_gpus
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy.testing import FakeDevice
from tpy_control.options import ControlOptions
from tpy_data import gpus
from tpy_data.engine.instances.gpu_limits import parse_gpu_limits, require_share

GIB = 2**30
ON_GPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_GPU, device_id=1)


class FakeDriver:
    """Two devices, of capability 5.2 and 9.0, with 30 of 80 GiB free. Contexts are counted."""

    def __init__(self, *, memory_code: int = 0, count: int = 2, count_code: int = 0) -> None:
        self.retained = self.pushed = 0
        self.count, self.count_code = count, count_code
        self._memory_code = memory_code

    def cuInit(self, flags: int) -> int:  # the driver's names
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = number
        return 0 if number < 2 else 101

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.count
        return self.count_code

    def cuDeviceGetName(self, into: Any, size: int, device: Any) -> int:
        into.value = b"NVIDIA Test"
        return 0

    def cuDeviceGetUuid(self, into: Any, device: Any) -> int:
        into.raw = bytes(range(device.value, device.value + 16))
        return 0

    def cuDeviceGetAttribute(self, into: Any, attribute: int, device: Any) -> int:
        major, minor = ((5, 2), (9, 0))[device.value]
        into._obj.value = {75: major, 76: minor}[attribute]
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self.retained += 1
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:
        self.retained -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.pushed += 1
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        self.pushed -= 1
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        free._obj.value, total._obj.value = 30 * GIB, 80 * GIB
        return self._memory_code


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: fake)
    return fake


def test_queries_of_the_driver(driver: FakeDriver) -> None:
    assert gpus.compute_capability(1) == (9, 0)
    assert gpus.memory(1) == gpus.GpuMemory(used=50 * GIB, total=80 * GIB)
    assert (driver.retained, driver.pushed) == (0, 0)
    with pytest.raises(Internal, match="unable to get CUDA device properties for device 2: CUDA error 101"):
        gpus.compute_capability(2)


def test_a_failure_leaves_no_context_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver(memory_code=2)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: fake)
    with pytest.raises(Internal, match="CUDA error 2"):
        gpus.memory(0)
    assert (fake.retained, fake.pushed) == (0, 0)


def test_an_instance_that_leaves_its_gpu_too_full_is_refused(driver: FakeDriver) -> None:
    require_share(ON_GPU, 0.7)
    text = "can not create model 'm_0': memory limit set for GPU 1 has exceeded, model loading is rejected."
    with pytest.raises(Unavailable, match=text):
        require_share(ON_GPU, 0.6)


def test_discovery(driver: FakeDriver) -> None:
    driver.count = 3  # of which the last one fails
    assert gpus.discover() == gpus.GpuInventory(
        gpus=(
            gpus.Gpu(id=0, compute_capability=(5, 2), uuid="GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", name="NVIDIA Test"),
            gpus.Gpu(id=1, compute_capability=(9, 0), uuid="GPU-01020304-0506-0708-090a-0b0c0d0e0f10", name="NVIDIA Test"),
            gpus.Gpu(id=2),
        )
    )


@pytest.mark.parametrize(
    ("code", "trouble"),
    [(100, ""), (34, ""), (803, "the driver refuses: CUDA error 803")],
    ids=["no device", "stub", "driver and library disagree"],
)
def test_discovery_of_nothing(monkeypatch: pytest.MonkeyPatch, code: int, trouble: str) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(count_code=code))
    assert gpus.discover() == gpus.GpuInventory(trouble=trouble)


@pytest.mark.parametrize("present", [False, True])
def test_devices_without_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, present: bool) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    (tmp_path / "nvidiactl").touch()
    if present:
        (tmp_path / "nvidia0").touch()
    text = "the driver's library cannot be loaded: libcuda.so.1: cannot open shared object file"
    assert gpus.discover(tmp_path) == gpus.GpuInventory(trouble=text if present else "")


def test_a_server_told_to_use_the_cpu_only_does_not_ask(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(visible_gpus().gpus) == 2
    monkeypatch.setenv("TRITON_SERVER_CPU_ONLY", "1")
    assert visible_gpus() == gpus.NO_GPUS


def test_a_gpu_that_is_too_old_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No context is made on it, which takes memory."""
    monkeypatch.setattr("tpy.devices.cuda.CudaDevice", FakeDevice)
    there = gpus.GpuInventory(gpus=(gpus.Gpu(id=0, compute_capability=(5, 2)), gpus.Gpu(id=1, compute_capability=(9, 0))))
    options = ServerOptions(control=ControlOptions(repositories=()), compute_capability_min=6.0)
    assert open_devices(options, there).ids == (1,)


def test_limits_by_device() -> None:
    assert parse_gpu_limits(["0:0.5", "1:1", "0:0.9"]) == {0: 0.5, 1: 1.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5", "expected <device>:<fraction>, got '0.5'"),
        ("a:0.5", "expected <device>:<fraction>, got 'a:0.5'"),
        ("-1:0.5", "expects device ID >= 0, got -1"),
        ("0:1.5", r"expects limit fraction to be in range \[0.0, 1.0\], got 1.500000"),
        ("0:nan", r"expects limit fraction to be in range \[0.0, 1.0\], got nan"),
    ],
)
def test_limits_that_are_none(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_gpu_limits([text])
