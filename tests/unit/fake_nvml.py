"""NVML that is none: two GPUs, as pynvml tells of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

GIB = 2**30
A, B = "GPU-aaaa", "GPU-bbbb"


class NvmlError(Exception):
    """As pynvml's."""


class FakeNvml:
    """Two GPUs. `broken` has what fails, by function and UUID; `processes` are ids and bytes, by UUID."""

    def __init__(self) -> None:
        self.broken: set[tuple[str, str]] = set()
        self.energy_mj = 5_000_000
        self.processes: dict[str, list[tuple[int, int | None]]] = {}
        self.calls = 0

    def nvmlInit(self) -> None:
        if ("nvmlInit", "") in self.broken:
            raise NvmlError("Driver Not Loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return self._of("nvmlDeviceGetHandleByUUID", uuid, uuid)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return self._of("nvmlDeviceGetUtilizationRates", handle, SimpleNamespace(gpu=37, memory=5))

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return self._of("nvmlDeviceGetMemoryInfo", handle, SimpleNamespace(total=80 * GIB, used=3 * GIB, free=77 * GIB))

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self._of("nvmlDeviceGetPowerUsage", handle, 71_250)

    def nvmlDeviceGetPowerManagementLimit(self, handle: str) -> int:
        return self._of("nvmlDeviceGetPowerManagementLimit", handle, 700_000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return self._of("nvmlDeviceGetTotalEnergyConsumption", handle, self.energy_mj)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        found = [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes.get(handle, ())]
        return self._of("nvmlDeviceGetComputeRunningProcesses", handle, found)

    def _of(self, function: str, uuid: str, value: Any) -> Any:
        self.calls += 1
        if {(function, uuid), ("*", uuid)} & self.broken:
            raise NvmlError("GPU is lost")
        return value
