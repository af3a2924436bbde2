"""CPU and memory of the machine, read from /proc (Linux; elsewhere there is nothing to read and no family)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tpy.telemetry.cache import CACHE_FAMILIES
from tpy.telemetry.exposition import MeasuredFamily, MetricKind, Sample
from tpy.telemetry.gpus import GPU_FAMILIES
from tpy.telemetry.metrics import (
    BATCH_SIZE,
    DROPPED_LINES,
    FAMILIES,
    LATENCY_FAMILIES,
    REFUSED,
    SERVER_LEAKS,
    SERVER_LOAD,
    SERVER_TREND,
)
from tpy.telemetry.repositories import REPOSITORY_FAMILIES
from tpy.telemetry.rollouts import ROLLOUT_FAMILIES
from tpy.units import KIB

CPU_UTILIZATION = "nv_cpu_utilization"
MEMORY_TOTAL = "nv_cpu_memory_total_bytes"
MEMORY_USED = "nv_cpu_memory_used_bytes"
_PINNED_TOTAL = "nv_pinned_memory_pool_total_bytes"
_PINNED_USED = "nv_pinned_memory_pool_used_bytes"

MEMORY_BUDGET_FAMILIES: Mapping[str, MetricKind] = {
    f"tpy_memory_budget_{name}": MetricKind.COUNTER if name.endswith("total") else MetricKind.GAUGE
    for name in (
        *("bytes", "used_bytes", "gpu_bytes", "gpu_used_bytes", "models"),
        *("waiting_requests", "loads_total", "unloads_total", "refusals_total"),
    )
}
"""Of servers with --model-memory-budget, and --model-gpu-memory-budget."""

TENANT_FAMILIES: Mapping[str, MetricKind] = {
    f"tpy_tenant_{name}": MetricKind.COUNTER if name.endswith("total") else MetricKind.GAUGE
    for name in ("requests_total", "refusals_total", "waiting_requests", "instance_seconds_total", "tokens_total", "weight")
}
"""Of servers with --tenants-file."""

BATCHING_FAMILIES: Mapping[str, MetricKind] = {
    f"tpy_batching_{name}": MetricKind.COUNTER if name.endswith("total") else MetricKind.GAUGE
    for name in ("rows", "expected_seconds", "wait_seconds", "target_seconds", "late_total", "padding_ratio")
}
"""Of models with `batching: auto`."""

SERVER_FAMILIES: Mapping[str, MetricKind] = {
    **{family.name: family.kind for family in FAMILIES},
    **{name: kind for name, (kind, _) in LATENCY_FAMILIES.items()},
    BATCH_SIZE: MetricKind.HISTOGRAM,
    **GPU_FAMILIES,
    **REPOSITORY_FAMILIES,
    **ROLLOUT_FAMILIES,
    **MEMORY_BUDGET_FAMILIES,
    **TENANT_FAMILIES,
    **BATCHING_FAMILIES,
    REFUSED: MetricKind.COUNTER,
    DROPPED_LINES: MetricKind.COUNTER,
    SERVER_LOAD: MetricKind.GAUGE,
    SERVER_TREND: MetricKind.GAUGE,
    SERVER_LEAKS: MetricKind.GAUGE,
    **dict.fromkeys((CPU_UTILIZATION, MEMORY_TOTAL, MEMORY_USED, _PINNED_TOTAL, _PINNED_USED, *CACHE_FAMILIES), MetricKind.GAUGE),
}
"""Every family of the server's own: models cannot have them."""

_STAT = Path("/proc/stat")
_MEMINFO = Path("/proc/meminfo")


class HostSampler:
    """Samples on demand; utilisation is over the time since the sample before. `sample` reads two small files of /proc,
    which the kernel answers from memory, so it may run on the loop."""

    def __init__(self) -> None:
        self._busy = 0
        self._total = 0
        self._families: tuple[MeasuredFamily, ...] = ()

    @property
    def families(self) -> tuple[MeasuredFamily, ...]:
        """The newest sample."""
        return self._families

    def sample(self) -> None:
        """Take a sample; an empty one if /proc cannot be read."""
        try:
            stat = _STAT.read_text(encoding="ascii")
            meminfo = _MEMINFO.read_text(encoding="ascii")
        except OSError:
            self._families = ()
            return
        utilization = self._utilization(stat)
        memory = _meminfo(meminfo)
        total = memory.get("MemTotal", 0)
        used = total - memory.get("MemAvailable", total)
        self._families = (
            _gauge(CPU_UTILIZATION, "CPU utilization rate [0.0 - 1.0]", utilization),
            _gauge(MEMORY_TOTAL, "CPU total memory (RAM), in bytes", total),
            _gauge(MEMORY_USED, "CPU used memory (RAM), in bytes", used),
        )

    def _utilization(self, stat: str) -> float:
        fields = [int(field) for field in stat.split("\n", 1)[0].split()[1:9]]
        idle = fields[3] + fields[4]
        total = sum(fields)
        busy = total - idle
        spent, self._total = total - self._total, total
        worked, self._busy = busy - self._busy, busy
        return worked / spent if spent > 0 else 0.0


def pinned_pool_families(total_bytes: int, used_bytes: int) -> list[MeasuredFamily]:
    """The families of the pool of pinned memory. Without a GPU Triton shows the size that was asked for, too."""
    return [
        _gauge(_PINNED_TOTAL, "Pinned memory pool total memory size, in bytes", total_bytes),
        _gauge(_PINNED_USED, "Pinned memory pool used memory size, in bytes", used_bytes),
    ]


def _gauge(name: str, text: str, value: float) -> MeasuredFamily:
    return MeasuredFamily(name=name, kind=MetricKind.GAUGE, help=text, samples=(Sample({}, value),))


def _meminfo(text: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if number:
            values[name] = int(number[0]) * KIB
    return values
