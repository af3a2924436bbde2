"""Runs `tpy serve` as on a machine with two GPUs, of which the second does not tell its utilization. Each other process has 3 GiB
of the first one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.unit.fake_nvml import GIB, A, B, FakeNvml
from tpy.cli import main, serve
from tpy_data.gpus import Gpu, GpuInventory

INVENTORY = GpuInventory(gpus=tuple(Gpu(id=number, compute_capability=(9, 0), uuid=uuid) for number, uuid in enumerate((A, B))))


class _Nvml(FakeNvml):
    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        processes = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]
        self.processes = {A: [(pid, 3 * GIB) for pid in processes if pid != os.getpid()]}
        return super().nvmlDeviceGetComputeRunningProcesses(handle)


if __name__ == "__main__":
    nvml: Any = _Nvml()
    nvml.broken.add(("nvmlDeviceGetUtilizationRates", B))
    sys.modules["pynvml"] = nvml
    serve.visible_gpus = lambda: INVENTORY
    main()
