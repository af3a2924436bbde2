"""The GPUs of a server during a measurement, as its metrics page shows them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import msgspec

from tpy.limits.loading import LOAD_METRICS_BYTES_MAX, LOAD_METRICS_S_MAX
from tpy.telemetry.reading import read_samples
from tpy_tools.load.asking import NoReply, ask
from tpy_tools.load.links import Tls, tls_context

_FAMILIES = {
    "nv_gpu_utilization": "utilization",
    "nv_gpu_power_usage": "power_w",
    "nv_gpu_memory_used_bytes": "memory_used_bytes",
    "nv_gpu_memory_total_bytes": "memory_total_bytes",
    "nv_energy_consumption": "energy_j",
}
_NS_PER_S = 1e9
_OK = 200

GpuSample = Mapping[str, Mapping[str, float]]
"""By UUID: values by the names above, as far as the page has them."""


class MetricsError(Exception):
    """A metrics page that cannot be read."""


class MeasuredGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU during a measurement; None: the page does not say. `utilization` is from 0 to 1, `energy_j` in joules."""

    utilization: float | None = None
    power_w: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    energy_j: float | None = None


class GpuMetricsPage:
    """A metrics page at `host:port/path`."""

    def __init__(self, host: str, port: int, path: str = "/metrics", tls: Tls | None = None) -> None:
        self._host = host
        self._port = port
        self._path = path
        self._tls = tls

    def gpus(self) -> GpuSample:
        """The GPUs now. Raises MetricsError."""
        where = f"{self._host}:{self._port}{self._path}"
        context = None if self._tls is None else tls_context(self._tls, ["http/1.1"])
        try:
            answer = ask(
                (self._host, self._port),
                "GET",
                self._path,
                context=context,
                timeout_s=LOAD_METRICS_S_MAX,
                bytes_max=LOAD_METRICS_BYTES_MAX,
            )
        except NoReply as error:
            raise MetricsError(f"no metrics at {where}: {error}") from error
        if answer.status != _OK:
            raise MetricsError(f"no metrics at {where}: HTTP {answer.status}")
        return gpus_of(answer.body.decode(errors="replace"))


def gpus_of(page: str) -> dict[str, dict[str, float]]:
    """The GPUs of a page."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in read_samples(page, tuple(_FAMILIES)):
        if name in _FAMILIES and "gpu_uuid" in labels:
            found.setdefault(labels["gpu_uuid"], {})[_FAMILIES[name]] = value
    return found


class GpuWatch:
    """Takes samples in a separate thread from `start` on, one each `interval_s`. A context manager."""

    def __init__(self, sample: Callable[[], GpuSample], interval_s: float, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._sample = sample
        self._interval_s = interval_s
        self._now_ns = now_ns
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-metrics", daemon=True)
        self.samples: list[tuple[int, GpuSample]] = []
        self.trouble = ""
        """The latest error."""

    def __enter__(self) -> GpuWatch:
        return self

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(LOAD_METRICS_S_MAX)

    def _run(self) -> None:
        while True:
            try:
                self.samples.append((self._now_ns(), self._sample()))
            except MetricsError as error:
                self.trouble = str(error)
            if self._ended.wait(self._interval_s):
                return


def use_of(samples: Sequence[tuple[int, GpuSample]], boundaries_ns: Sequence[int]) -> dict[str, MeasuredGpu]:
    """The use of each GPU between the first and the last of these times, of all samples where none lie between."""
    if not boundaries_ns:
        return {}
    begin, end = min(boundaries_ns), max(boundaries_ns)
    within = [(at, sample) for at, sample in samples if begin <= at <= end] or samples
    names = dict.fromkeys(uuid for _, sample in within for uuid in sample)
    return {uuid: _use([(at, sample[uuid]) for at, sample in within if uuid in sample], end - begin) for uuid in names}


def _use(samples: Sequence[tuple[int, Mapping[str, float]]], duration_ns: int) -> MeasuredGpu:
    def of(name: str) -> list[float]:
        return [values[name] for _, values in samples if name in values]

    def mean(values: list[float]) -> float | None:
        return sum(values) / len(values) if values else None

    energies = [(at, values["energy_j"]) for at, values in samples if "energy_j" in values]
    energy = None
    if len(energies) > 1 and energies[-1][0] > energies[0][0]:
        per_ns = (energies[-1][1] - energies[0][1]) / (energies[-1][0] - energies[0][0])
        energy = per_ns * duration_ns
    elif (power := mean(of("power_w"))) is not None:
        energy = power * duration_ns / _NS_PER_S
    return MeasuredGpu(
        utilization=mean(of("utilization")),
        power_w=mean(of("power_w")),
        memory_used_bytes=max(of("memory_used_bytes"), default=None),
        memory_total_bytes=max(of("memory_total_bytes"), default=None),
        energy_j=energy,
    )
