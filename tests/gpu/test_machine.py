"""The driver and the management library of a real GPU: what the server asks them."""

from __future__ import annotations

import pytest

from tpy.devices.cuda import CudaDevice
from tpy.telemetry.gpus import GPU_FAMILIES, GpuSampler
from tpy.units import MIB
from tpy_data import gpus
from tpy_data.engine.loading.memory_meter import MemoryMeter

pytestmark = pytest.mark.usefixtures("device")


def test_the_driver_describes_each_gpu() -> None:
    found = gpus.discover()
    assert found.gpus, found.trouble
    for gpu in found.gpus:
        assert gpu.name
        assert gpu.uuid.startswith("GPU-")
        assert gpu.compute_capability is not None
        assert gpu.compute_capability >= (5, 0)


def test_every_value_of_every_gpu() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    uuids = [gpu.uuid for gpu in gpus.discover().gpus]
    sampler = GpuSampler(uuids)
    assert sampler.sample()
    values = {family.name: [sample.value for sample in family.samples] for family in sampler.families}
    assert set(values) <= set(GPU_FAMILIES)
    for total, used in zip(values["nv_gpu_memory_total_bytes"], values["nv_gpu_memory_used_bytes"], strict=True):
        assert 0 < used < total
    assert all(0 <= value <= 1 for value in values["nv_gpu_utilization"])
    assert [sample.labels for sample in sampler.families[0].samples] == [{"gpu_uuid": uuid} for uuid in uuids]


def test_memory_of_a_load(device: CudaDevice) -> None:
    with MemoryMeter().measure(devices=[0]) as measured:
        kept = device.allocate(256 * MIB)
    (usage,) = [usage for usage in measured.usage() if usage.kind == "GPU"]
    assert usage.id == 0
    assert 256 * MIB <= usage.byte_size < 512 * MIB
    assert gpus.memory(0).used >= 256 * MIB
    assert kept.size == 256 * MIB
