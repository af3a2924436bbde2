"""Metrics of GPUs, against a fake NVML: the machines that run these tests have none."""

from __future__ import annotations

import logging
import sys
from typing import cast

import pytest
import trio

from tests.unit.fake_nvml import GIB, A, B, FakeNvml
from tpy.assembly import MetricsOptions, ServerOptions
from tpy.assembly.metrics_page import MetricsPage
from tpy.messages import GpuUse
from tpy.telemetry.gpus import GPU_FAMILIES, GpuSampler, gpu_uses
from tpy.telemetry.metrics import render
from tpy_control.options import ControlOptions
from tpy_data.engine import DataPlane
from tpy_data.gpus import Gpu, GpuInventory


def values(sampler: GpuSampler) -> dict[str, float]:
    return {
        f"{family.name}{{{sample.labels['gpu_uuid']}}}": sample.value for family in sampler.families for sample in family.samples
    }


def test_a_page_with_two_gpus() -> None:
    """Names, types, texts and labels are those of Triton's metrics.cc."""
    sampler = GpuSampler([A, B], FakeNvml())
    assert sampler.families == ()
    assert sampler.sample()
    page = render([], sampler.families).decode()
    assert page[page.index("# HELP nv_gpu") :] == "".join(
        f"# HELP {name} {text}\n# TYPE {name} {kind}\n" + "".join(f'{name}{{gpu_uuid="{uuid}"}} {value}\n' for uuid in (A, B))
        for name, text, kind, value in (
            ("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", "gauge", "0.37"),
            ("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", "gauge", 80 * GIB),
            ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", "gauge", 3 * GIB),
            ("nv_gpu_power_usage", "GPU power usage in watts", "gauge", "71.25"),
            ("nv_gpu_power_limit", "GPU power management limit in watts", "gauge", 700),
            ("nv_energy_consumption", "GPU energy consumption in joules since the Triton Server started", "counter", 0),
        )
    )


def test_energy_counts_from_the_start_and_never_falls() -> None:
    nvml = FakeNvml()
    sampler = GpuSampler([A], nvml)
    joules = []
    for energy_mj in (5_000_000, 5_001_500, 10, 2_010):  # the driver is loaded anew in between
        nvml.energy_mj = energy_mj
        sampler.sample()
        joules.append(values(sampler)[f"nv_energy_consumption{{{A}}}"])
    assert joules == [0.0, 1.5, 1.5, 3.5]


def test_a_device_that_disappears_leaves_the_page_and_the_other_stays(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml()
    sampler = GpuSampler([A, B], nvml)
    sampler.sample()
    nvml.broken.add(("*", B))
    for _ in range(5):
        assert sampler.sample()
        assert {name.partition("{")[2] for name in values(sampler)} == {f"{A}}}"}
    assert sorted(record.getMessage() for record in caplog.records) == sorted(
        f"Unable to get {what} for GPU {B}: GPU is lost"
        for what in ("energy consumption", "memory usage", "power limit", "power usage", "utilization")
    )
    calls = nvml.calls
    nvml.broken.add(("*", A))
    for _ in range(3):
        sampler.sample()
    assert nvml.calls == calls + 15  # the lost one is not asked any more
    assert not sampler.sample()
    assert sampler.families == ()


def test_a_value_that_fails_once_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml()
    sampler = GpuSampler([A], nvml)
    nvml.broken.add(("nvmlDeviceGetMemoryInfo", A))
    for _ in range(2):
        sampler.sample()
        assert f"nv_gpu_memory_used_bytes{{{A}}}" not in values(sampler)
        assert f"nv_gpu_power_usage{{{A}}}" in values(sampler)
    nvml.broken.clear()
    sampler.sample()
    assert values(sampler)[f"nv_gpu_memory_used_bytes{{{A}}}"] == 3 * GIB
    assert len(caplog.records) == 1


def test_a_device_that_the_library_does_not_know(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml()
    nvml.broken.add(("nvmlDeviceGetHandleByUUID", A))
    sampler = GpuSampler([A, B], nvml)
    assert sampler.sample()
    assert [record.getMessage() for record in caplog.records] == [f"GPU metrics are not available for {A}: GPU is lost"]
    assert f"nv_gpu_utilization{{{B}}}" in values(sampler)


def test_a_library_that_does_not_start_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml()
    nvml.broken.add(("nvmlInit", ""))
    sampler = GpuSampler([A], nvml)
    assert [sampler.sample(), sampler.sample()] == [False, False]
    assert [record.getMessage() for record in caplog.records] == [
        "GPU metrics are not available: NVML does not start: Driver Not Loaded"
    ]


def test_the_use_of_a_gpu_of_which_not_all_can_be_read() -> None:
    nvml = FakeNvml()
    nvml.broken |= {("nvmlDeviceGetMemoryInfo", A), ("*", B)}
    sampler = GpuSampler([A, B], nvml)
    sampler.sample()
    assert gpu_uses(sampler.families, {A: 0, B: 1}) == [GpuUse(id=0, uuid=A, utilization=0.37)]


def test_a_missing_package_is_one_warning_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler = GpuSampler([A])
    assert [sampler.sample(), sampler.sample()] == [False, False]
    text = "GPU metrics are not available: they need NVIDIA's package, pip install nvidia-ml-py"
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.WARNING, text)]


def test_the_package_has_what_is_asked_of_it() -> None:
    """The functions that the fake stands for are there under these names; starting it may fail, for want of a driver."""
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    functions = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert len(functions) == 8
    assert [name for name in functions if not callable(getattr(pynvml, name, None))] == []
    assert set(GPU_FAMILIES) >= {family.name for family in GpuSampler([A]).families}


class NoModels:
    """As much of a data plane as the page asks."""

    def statistics(self, *, with_latencies: bool) -> tuple[()]:
        return ()

    def cache_statistics(self) -> None:
        return None

    def tenant_families(self) -> tuple[()]:
        return ()

    def batching_families(self) -> tuple[()]:
        return ()

    def budget_families(self) -> tuple[()]:
        return ()

    def rollout_families(self) -> tuple[()]:
        return ()

    def custom_metrics(self) -> tuple[()]:
        return ()

    def growth(self) -> None:
        return None

    async def watch_memory(self) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize("allowed", [True, False])
async def test_the_page_of_a_server_with_gpus(allowed: bool, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> None:
    again = trio.Event()

    class Counted(FakeNvml):
        def nvmlDeviceGetPowerManagementLimit(self, handle: str) -> int:
            if self.calls > 6:  # a handle and five readings: a sample has been taken
                trio.from_thread.run_sync(again.set)
            return super().nvmlDeviceGetPowerManagementLimit(handle)

    nvml = Counted()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    options = ServerOptions(
        control=ControlOptions(repositories=()), metrics=MetricsOptions(gpus=allowed, machine=False, interval_ms=1)
    )
    inventory = GpuInventory(gpus=(Gpu(id=1), Gpu(id=3, uuid=A)))
    page = MetricsPage(options, cast("DataPlane", NoModels()), inventory)
    nursery.start_soon(page.sample)
    if allowed:
        await again.wait()
    await trio.testing.wait_all_tasks_blocked()
    text = (await page.page()).decode()
    assert (f'nv_gpu_utilization{{gpu_uuid="{A}"}} 0.37\n' in text) is allowed
    assert ("nv_gpu" in text, nvml.calls > 0) == (allowed, allowed)
    use = GpuUse(id=3, uuid=A, utilization=0.37, memory_used_bytes=3 * GIB, memory_total_bytes=80 * GIB)
    assert await page.gpus() == ([use] if allowed else [])
    nursery.cancel_scope.cancel()
