"""Utilisation, memory and power of GPUs, from NVIDIA's management library (NVML) by the package nvidia-ml-py (`pynvml`)."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tpy.limits import GPU_METRIC_FAILURES_MAX
from tpy.messages import GpuUse
from tpy.telemetry.exposition import MeasuredFamily, MetricKind, Sample

_log = logging.getLogger(__name__)

_LABEL = "gpu_uuid"
_UTILIZATION = "nv_gpu_utilization"
_MEMORY_TOTAL = "nv_gpu_memory_total_bytes"
_MEMORY_USED = "nv_gpu_memory_used_bytes"
_POWER_USAGE = "nv_gpu_power_usage"
_POWER_LIMIT = "nv_gpu_power_limit"
_ENERGY = "nv_energy_consumption"

_HELP: Mapping[str, str] = {
    _UTILIZATION: "GPU utilization rate [0.0 - 1.0)",
    _MEMORY_TOTAL: "GPU total memory, in bytes",
    _MEMORY_USED: "GPU used memory, in bytes",
    _POWER_USAGE: "GPU power usage in watts",
    _POWER_LIMIT: "GPU power management limit in watts",
    _ENERGY: "GPU energy consumption in joules since the Triton Server started",
}
"""Triton's families and texts, in its order."""

GPU_FAMILIES: Mapping[str, MetricKind] = {name: MetricKind.COUNTER if name == _ENERGY else MetricKind.GAUGE for name in _HELP}

_PER_MILLE = 1000  # NVML counts milliwatts and millijoules
_PERCENT = 100


class GpuSampler:
    """Samples the GPUs with these UUIDs on demand, in one thread at a time: a driver may take its time.

    What cannot be read is not on the page, and said once: by all GPUs when the library is not there, by a GPU that has gone, by a
    family that a GPU does not have. `nvml` is the module, or what stands for it in tests; None: pynvml.
    """

    def __init__(self, uuids: Sequence[str], nvml: Any = None) -> None:
        self.uuids = uuids
        self._nvml = nvml
        self._devices: list[_Device] | None = None
        self._families: tuple[MeasuredFamily, ...] = ()

    @property
    def families(self) -> tuple[MeasuredFamily, ...]:
        """The newest sample: families that have values."""
        return self._families

    def sample(self) -> bool:
        """Take a sample. Returns False when there is nothing to sample, now or ever. Blocking."""
        if self._devices is None:
            self._devices = self._open()
        self._devices = [device for device in self._devices if device.readable]
        values = [(device.uuid, device.read()) for device in self._devices]
        families = []
        for name, text in _HELP.items():
            samples = [Sample({_LABEL: uuid}, read[name]) for uuid, read in values if name in read]
            if samples:
                families.append(MeasuredFamily(name=name, kind=GPU_FAMILIES[name], help=text, samples=samples))
        self._families = tuple(families)
        return bool(self._devices)

    def _open(self) -> list[_Device]:
        try:
            if self._nvml is None:
                self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except ImportError:
            _log.warning("GPU metrics are not available: they need NVIDIA's package, pip install nvidia-ml-py")
            return []
        except Exception as error:
            _log.warning("GPU metrics are not available: NVML does not start: %(error)s", {"error": error})
            return []
        devices = []
        for uuid in self.uuids:
            try:
                devices.append(_Device(uuid, self._nvml.nvmlDeviceGetHandleByUUID(uuid), self._nvml))
            except Exception as error:
                _log.warning("GPU metrics are not available for %(uuid)s: %(error)s", {"uuid": uuid, "error": error})
        return devices


class _Device:
    """One GPU. Each reading that fails is skipped this time, and for good after GPU_METRIC_FAILURES_MAX times in a row."""

    def __init__(self, uuid: str, handle: Any, nvml: Any) -> None:
        self.uuid = uuid
        self._handle = handle
        self._nvml = nvml
        self._readings: dict[str, Callable[[], Mapping[str, float]]] = {
            "power limit": self._power_limit,
            "power usage": self._power_usage,
            "energy consumption": self._energy,
            "utilization": self._utilization,
            "memory usage": self._memory,
        }
        self._failures = dict.fromkeys(self._readings, 0)
        self._energy_last: int | None = None
        self._joules = 0.0

    @property
    def readable(self) -> bool:
        """False when nothing can be read of it any more."""
        return bool(self._readings)

    def read(self) -> dict[str, float]:
        """Values by family."""
        values: dict[str, float] = {}
        for title, reading in list(self._readings.items()):
            try:
                values.update(reading())
                self._failures[title] = 0
            except Exception as error:  # the library's errors, and whatever its binding makes of a driver that it does not know
                self._failed(title, error)
        return values

    def _failed(self, title: str, error: Exception) -> None:
        self._failures[title] += 1
        if self._failures[title] == 1:
            _log.warning("Unable to get %(what)s for GPU %(uuid)s: %(error)s", {"what": title, "uuid": self.uuid, "error": error})
        if self._failures[title] >= GPU_METRIC_FAILURES_MAX:
            del self._readings[title]

    def _power_limit(self) -> Mapping[str, float]:
        return {_POWER_LIMIT: self._nvml.nvmlDeviceGetPowerManagementLimit(self._handle) / _PER_MILLE}

    def _power_usage(self) -> Mapping[str, float]:
        return {_POWER_USAGE: self._nvml.nvmlDeviceGetPowerUsage(self._handle) / _PER_MILLE}

    def _energy(self) -> Mapping[str, float]:
        """The driver counts since it was loaded: what was there at first is not ours, and a count that falls begins anew."""
        counted = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        if self._energy_last is not None and counted > self._energy_last:
            self._joules += (counted - self._energy_last) / _PER_MILLE
        self._energy_last = counted
        return {_ENERGY: self._joules}

    def _utilization(self) -> Mapping[str, float]:
        return {_UTILIZATION: self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / _PERCENT}

    def _memory(self) -> Mapping[str, float]:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return {_MEMORY_TOTAL: memory.total, _MEMORY_USED: memory.used}


def gpu_uses(families: Iterable[MeasuredFamily], ids: Mapping[str, int]) -> list[GpuUse]:
    """The use of GPUs from a sample of them. `ids` has CUDA's number of each by its UUID, whose order is kept."""
    read: dict[str, dict[str, float]] = {}
    for family in families:
        for sample in family.samples:
            read.setdefault(sample.labels[_LABEL], {})[family.name] = sample.value
    return [_use(uuid, number, read[uuid]) for uuid, number in ids.items() if uuid in read]


def _use(uuid: str, number: int, read: Mapping[str, float]) -> GpuUse:
    used, total = read.get(_MEMORY_USED), read.get(_MEMORY_TOTAL)
    return GpuUse(
        id=number,
        uuid=uuid,
        utilization=read.get(_UTILIZATION),
        memory_used_bytes=None if used is None else int(used),
        memory_total_bytes=None if total is None else int(total),
    )
