"""EngineMetrics: what an engine does, on the metrics port (docs/reference/metrics.md)."""

from __future__ import annotations

from typing import Final

from tpy.backend import Metric, MetricFamily, ModelMetrics
from tpy.backend.engine import EngineLoad
from tpy.telemetry.exposition import MetricKind
from tpy.units import NS_PER_MS, NS_PER_S

_FIRST_S: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_BETWEEN_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
_WHOLE_S: Final = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
"""vLLM's buckets, roughly: dashboards for it show the same."""

_PERIOD_NS: Final = 250 * NS_PER_MS
"""The interval at which the counts of a running engine are reported: from a separate process each report is a message."""

_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

_GAUGES: Final = (
    ("tpy_llm_requests_running", "Sequences that take part in the steps of the engine"),
    ("tpy_llm_requests_preempted", "Sequences that the engine has, and that wait for room in it"),
    ("tpy_llm_kv_cache_usage_ratio", "Share of the blocks of the KV cache that sequences use"),
)
_COUNTERS: Final = (
    ("tpy_llm_prompt_tokens_total", "Tokens of prompts"),
    ("tpy_llm_generation_tokens_total", "Tokens generated"),
    ("tpy_llm_prefix_cache_queries_total", "Tokens of prompts that were looked up in the prefix cache"),
    ("tpy_llm_prefix_cache_hits_total", "Tokens of prompts that were found in the prefix cache"),
    ("tpy_llm_preemptions_total", "Sequences that had to give up their blocks for others"),
)
_HISTOGRAMS: Final = (
    ("tpy_llm_time_to_first_token_seconds", "From when a request comes to its first token", _FIRST_S),
    ("tpy_llm_inter_token_seconds", "Between two steps that brought tokens of a request", _BETWEEN_S),
    ("tpy_llm_request_seconds", "From when a request comes to its last token, or its embedding", _WHOLE_S),
)


class RequestTimes:
    """The times of a request, in nanoseconds; `last_ns` is that of its last tokens, -1: none yet."""

    __slots__ = ("last_ns", "started_ns")

    def __init__(self, started_ns: int) -> None:
        self.started_ns = started_ns
        self.last_ns = -1


class EngineMetrics:
    """Of one instance: gauges are set when they change, counts and times are told a few times a second, and when nothing is left
    to do."""

    def __init__(self, metrics: ModelMetrics, *, model: str, version: int, instance: str) -> None:
        labels = {"model": model, "version": str(version), "instance": instance}
        self._families: list[MetricFamily] = []
        self._series: dict[str, Metric] = {}
        try:
            for name, text in _GAUGES:
                self._make(metrics, name, text, _GAUGE, labels)
            for name, text in _COUNTERS:
                self._make(metrics, name, text, _COUNTER, labels)
            for name, text, buckets in _HISTOGRAMS:
                self._make(metrics, name, text, _HISTOGRAM, labels, buckets)
        except BaseException:
            self.close()
            raise
        self._shown: dict[str, float] = {}
        self._untold: dict[str, int] = {}
        self._times: dict[str, list[float]] = {name: [] for name, _, _ in _HISTOGRAMS}
        self._told = EngineLoad()
        self._told_ns = 0

    def generated(self, times: RequestTimes, prompt_tokens: int, tokens: int, now_ns: int) -> None:
        """A step has brought tokens of a request."""
        if times.last_ns < 0:
            self._count("tpy_llm_prompt_tokens_total", prompt_tokens)
            self._times["tpy_llm_time_to_first_token_seconds"].append((now_ns - times.started_ns) / NS_PER_S)
        else:
            self._times["tpy_llm_inter_token_seconds"].append((now_ns - times.last_ns) / NS_PER_S)
        times.last_ns = now_ns
        self._count("tpy_llm_generation_tokens_total", tokens)

    def embedded(self, prompt_tokens: int) -> None:
        """A step has brought the embedding of a request."""
        self._count("tpy_llm_prompt_tokens_total", prompt_tokens)

    def finished(self, times: RequestTimes, now_ns: int) -> None:
        """A request has ended, and not with an error."""
        self._times["tpy_llm_request_seconds"].append((now_ns - times.started_ns) / NS_PER_S)

    def stepped(self, load: EngineLoad, now_ns: int) -> None:
        """The engine has made a step, and goes on."""
        self._show(load)
        if now_ns - self._told_ns >= _PERIOD_NS:
            self._told_ns = now_ns
            self._tell(load)

    def idle(self, load: EngineLoad) -> None:
        """The engine has nothing to do."""
        self._show(load)
        self._tell(load)

    def close(self) -> None:
        """The series are gone. Idempotent."""
        families, self._families = self._families, []
        for family in families:
            family.close()

    def _make(
        self,
        metrics: ModelMetrics,
        name: str,
        text: str,
        kind: MetricKind,
        labels: dict[str, str],
        buckets: tuple[float, ...] = (),
    ) -> None:
        family = metrics.family(name, text, kind)
        self._families.append(family)
        self._series[name] = family.metric(labels, buckets)

    def _show(self, load: EngineLoad) -> None:
        total = load.kv_blocks_total
        values = {
            "tpy_llm_requests_running": load.running,
            "tpy_llm_requests_preempted": load.waiting,
            "tpy_llm_kv_cache_usage_ratio": round(load.kv_blocks_used / total, 4) if total else 0.0,
        }
        for name, value in values.items():
            if self._shown.get(name) != value:
                self._shown[name] = value
                self._series[name].set(value)

    def _count(self, name: str, count: int) -> None:
        self._untold[name] = self._untold.get(name, 0) + count

    def _tell(self, load: EngineLoad) -> None:
        told, self._told = self._told, load
        self._count("tpy_llm_prefix_cache_queries_total", load.prefix_queries - told.prefix_queries)
        self._count("tpy_llm_prefix_cache_hits_total", load.prefix_hits - told.prefix_hits)
        self._count("tpy_llm_preemptions_total", load.preemptions - told.preemptions)
        untold, self._untold = self._untold, {}
        for name, count in untold.items():
            if count:
                self._series[name].increment(count)
        for name, times in self._times.items():
            if times:
                self._series[name].observe_all(times)
                times.clear()
