"""Queries of NVIDIA's driver, against a fake one: the machines that run these tests have no GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tpy.backend import InstancePlacement
from tpy.cli.serve import usable_gpus
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy_data import gpus
from tpy_data.engine.instances.gpu_limits import parse_gpu_limits, require_share

GIB = 2**30
ON_GPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_GPU, device_id=1)


class FakeDriver:
    """Two devices, of capability 5.2 and 9.0, with 30 of 80 GiB free. Contexts are counted."""

    def __init__(self, *, memory_code: int = 0) -> None:
        self.retained = self.pushed = 0
        self._memory_code = memory_code

    def cuInit(self, flags: int) -> int:  # the driver's names
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = number
        return 0 if number < 2 else 101

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
    assert gpus.memory(1) == gpus.DeviceMemory(used=50 * GIB, total=80 * GIB)
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


@pytest.mark.parametrize(("least", "usable"), [(5.2, (0, 1)), (6.0, (1,)), (9.0, (1,)), (9.1, ())])
def test_gpus_that_are_too_old_are_not_used(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, least: float, usable: tuple[int, ...]
) -> None:
    monkeypatch.setattr("tpy.cli.serve.visible_gpus", lambda: (0, 1))
    assert usable_gpus(least) == usable


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
