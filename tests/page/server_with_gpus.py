"""Runs `tpy serve` as on a machine with two GPUs, of which the second does not tell its utilization."""

from __future__ import annotations

import sys
from typing import Any

from tests.unit.fake_nvml import A, B, FakeNvml
from tpy.cli import main, serve
from tpy_data.gpus import Gpu, GpuInventory

INVENTORY = GpuInventory(gpus=tuple(Gpu(id=number, compute_capability=(9, 0), uuid=uuid) for number, uuid in enumerate((A, B))))

if __name__ == "__main__":
    nvml: Any = FakeNvml()
    nvml.broken.add(("nvmlDeviceGetUtilizationRates", B))
    sys.modules["pynvml"] = nvml
    serve.visible_gpus = lambda: INVENTORY
    main()
