"""Opens the memory budget of a server that has one."""

from __future__ import annotations

import trio

from tpy.clock import Clock
from tpy_data.engine.budget.gpus import GpuProcesses, gpu_budgets
from tpy_data.engine.budget.memory_budget import MemoryBudget, read_sizes
from tpy_data.engine.loading.memory_meter import MemoryMeter
from tpy_data.engine.loading.placing import Machine
from tpy_data.engine.memory_budget_options import MemoryBudgetOptions
from tpy_data.schedulers.core.tenants import Tenants


async def open_budget(
    wanted: MemoryBudgetOptions,
    machine: Machine,
    meter: MemoryMeter,
    clock: Clock,
    *,
    loads_max: int,
    tenants: Tenants | None,
) -> MemoryBudget:
    """The meter looks at the memory of worker processes on GPUs from now on, where these have a budget.

    Raises Unavailable for a file of sizes that cannot be read, and for a GPU that is not there."""
    gpus = gpu_budgets(wanted.gpus, machine)
    kept = {} if wanted.file is None else await trio.to_thread.run_sync(read_sizes, wanted.file)
    if gpus:
        meter.of_process = GpuProcesses(gpus).of_process
        meter.budgeted = [gpu.id for gpu in gpus]
    return MemoryBudget(
        wanted.bytes,
        clock,
        loads_max=loads_max,
        wait_ns_max=wanted.wait_ns_max,
        gpus=gpus,
        all_on_demand=wanted.all_on_demand,
        file=wanted.file,
        kept=kept,
        tenants=tenants,
    )
