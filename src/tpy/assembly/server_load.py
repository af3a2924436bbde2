"""ServerLoad: what load balancers are told of the server's load (ORCA)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpy.limits import LOAD_RATE_S_MIN, LOAD_REPORT_AGE_S_MAX
from tpy.messages import LoadReport, ModelStatistics
from tpy.telemetry.exposition import MeasuredFamily
from tpy.telemetry.host import CPU_UTILIZATION, MEMORY_TOTAL, MEMORY_USED

_KV_CACHE = "nv_trt_llm_kv_cache_block_metrics"
"""The family of TensorRT-LLM's backend that Triton makes its two names of."""

_KV_LABEL = "kv_cache_block_type"


class ServerLoad:
    """Measures at most every LOAD_REPORT_AGE_S_MAX. Time is an argument; `models`, `custom` and `machine` give the present
    statistics of all models, the metrics that models measure themselves, and the newest sample of the machine."""

    def __init__(
        self,
        models: Callable[[], Sequence[ModelStatistics]],
        custom: Callable[[], Sequence[MeasuredFamily]],
        machine: Callable[[], Sequence[MeasuredFamily]],
    ) -> None:
        self._models = models
        self._custom = custom
        self._machine = machine
        self._measured_s: float | None = None
        self._counted: tuple[float, int, int] | None = None
        self._rates: dict[str, float] = {}
        self._numbers: dict[str, float] = {}
        self._named: dict[str, float] = {}
        self._of_models: dict[tuple[str, int | None], float] = {}

    def report(self, model_name: str, version: int | None, now_s: float) -> LoadReport:
        """The report for an answer of a model; version None means its newest."""
        if self._measured_s is None or now_s - self._measured_s >= LOAD_REPORT_AGE_S_MAX:
            self._measured_s = now_s
            self._measure(now_s)
        load = self._of_models.get((model_name, version))
        return LoadReport(numbers=self._numbers, named=self._named if load is None else {"tpy_load": load, **self._named})

    def _measure(self, now_s: float) -> None:
        models = self._models()
        loads = {(each.name, each.version): round(each.load, 4) for each in models if each.load is not None}
        server = max(loads.values(), default=0.0)
        self._of_models = {(name, None): loads[name, version] for name, version in sorted(loads)}
        self._of_models.update(((name, version), load) for (name, version), load in loads.items())
        self._count(models, now_s)
        self._numbers = {"application_utilization": server, **self._machine_use(), **self._rates}
        self._named = {"tpy_server_load": server, **self._kv_cache()}

    def _count(self, models: Sequence[ModelStatistics], now_s: float) -> None:
        """Requests and errors a second, since they were last counted. A model that was unloaded takes its counts with it."""
        failed = sum(each.inference.fail.count for each in models)
        requests = failed + sum(each.inference.success.count for each in models)
        if self._counted is None:
            self._counted = now_s, requests, failed
            return
        then_s, requests_then, failed_then = self._counted
        if (passed_s := now_s - then_s) >= LOAD_RATE_S_MIN:
            self._counted = now_s, requests, failed
            self._rates = {
                "rps_fractional": round(max(0, requests - requests_then) / passed_s, 4),
                "eps": round(max(0, failed - failed_then) / passed_s, 4),
            }

    def _machine_use(self) -> dict[str, float]:
        values = {family.name: sample.value for family in self._machine() for sample in family.samples}
        use: dict[str, float] = {}
        if CPU_UTILIZATION in values:
            use["cpu_utilization"] = round(values[CPU_UTILIZATION], 4)
        if values.get(MEMORY_TOTAL):
            use["mem_utilization"] = round(values[MEMORY_USED] / values[MEMORY_TOTAL], 4)
        return use

    def _kv_cache(self) -> dict[str, float]:
        """Triton's two names, of the last model that has all three values, as there."""
        blocks = {
            sample.labels.get(_KV_LABEL, ""): sample.value
            for family in self._custom()
            if family.name == _KV_CACHE
            for sample in family.samples
        }
        if not {"used", "max", "tokens_per"} <= set(blocks):
            return {}
        used = blocks["used"] / blocks["max"] if blocks["max"] else 0.0
        return {"kv_cache_utilization": round(used, 6), "max_token_capacity": blocks["max"] * blocks["tokens_per"]}
