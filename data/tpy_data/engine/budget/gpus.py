"""GPUs with a memory budget, and the memory on them that processes have."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tpy.errors import Unavailable
from tpy_data.engine.loading.placing import Machine

_log = logging.getLogger(__name__)


class GpuBudget(NamedTuple):
    """--model-gpu-memory-budget: the bytes of one GPU, by its number and UUID."""

    id: int
    uuid: str
    bytes: int


def gpu_budgets(wanted: Mapping[int, int], machine: Machine) -> list[GpuBudget]:
    """The budgets of these GPUs, by number. Raises Unavailable for one that this machine does not have, or does not use."""
    uuids = {gpu.id: gpu.uuid for gpu in machine.inventory.gpus if gpu.id in machine.gpus}
    for number in wanted:
        if number not in uuids:
            there = f"only {', '.join(map(str, uuids))}" if uuids else "no GPUs"
            trouble = f" ({machine.inventory.trouble})" if machine.inventory.trouble else ""
            raise Unavailable(f"--model-gpu-memory-budget: there is no GPU {number} to use, this server has {there}{trouble}")
    return [GpuBudget(number, uuids[number], size_bytes) for number, size_bytes in sorted(wanted.items())]


class GpuProcesses:
    """Asks NVIDIA's management library (NVML, package nvidia-ml-py) how much memory a process has on each GPU. Any thread;
    blocking.

    A process that is not in its list has nothing that is known: NVML may know it by another id, as in a container. `nvml` is the
    module, or what stands for it in tests; None: pynvml."""

    def __init__(self, gpus: Sequence[GpuBudget], nvml: Any = None) -> None:
        self._gpus = gpus
        self._nvml = nvml
        self._lock = threading.Lock()
        self._handles: dict[int, Any] | None = None
        self._has_failed = False

    def of_process(self, pid: int) -> Mapping[int, int]:
        """Bytes by GPU, of those where it has memory."""
        found: dict[int, int] = {}
        with self._lock:
            if self._handles is None:
                self._handles = self._open()
            for number, handle in self._handles.items():
                size_bytes = self._read(handle, pid)
                if size_bytes:
                    found[number] = size_bytes
        return found

    def _open(self) -> dict[int, Any]:
        try:
            if self._nvml is None:
                self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except ImportError:
            self._warn("it needs NVIDIA's package, pip install nvidia-ml-py")
            return {}
        except Exception as error:
            self._warn(str(error))
            return {}
        handles: dict[int, Any] = {}
        for gpu in self._gpus:  # CUDA may know a GPU that NVML does not
            try:
                handles[gpu.id] = self._nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            except Exception as error:
                self._warn(f"GPU {gpu.id}: {error}")
        return handles

    def _read(self, handle: Any, pid: int) -> int:
        """0 where it is not known."""
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except Exception as error:
            self._warn(str(error))
            return 0
        return sum(each.usedGpuMemory or 0 for each in processes if each.pid == pid)

    def _warn(self, reason: str) -> None:
        """Once: what a GPU grows by counts in its place."""
        if not self._has_failed:
            self._has_failed = True
            _log.warning("the memory of worker processes on GPUs is not told, it is estimated: %(reason)s", {"reason": reason})
