"""The parts of a metrics page that a table of models shows."""

from __future__ import annotations

from typing import Final

import msgspec

from tpy.telemetry.reading import read_samples

ModelKey = tuple[str, str]
"""A name and a version."""

_PENDING: Final = "nv_inference_pending_request_count"
_BUCKET: Final = "tpy_inference_request_duration_seconds_bucket"
_SUMMARY: Final = "nv_inference_request_summary_us"
_GPUS: Final = {
    "nv_gpu_utilization": "utilization",
    "nv_gpu_memory_used_bytes": "memory_used",
    "nv_gpu_memory_total_bytes": "memory_total",
}
_HOST: Final = {
    "nv_cpu_utilization": "cpu",
    "nv_cpu_memory_used_bytes": "memory_used",
    "nv_cpu_memory_total_bytes": "memory_total",
}


_WANTED: Final = (_PENDING, _BUCKET, _SUMMARY, *_GPUS, *_HOST)


class ScrapedMetrics(msgspec.Struct):
    """Series by model; `buckets` are cumulative counts by upper bound in seconds, `quantiles` microseconds. `gpus` and `host` are
    values by name."""

    pending: dict[ModelKey, float] = {}
    buckets: dict[ModelKey, dict[float, float]] = {}
    quantiles: dict[ModelKey, dict[float, float]] = {}
    gpus: dict[str, dict[str, float]] = {}
    host: dict[str, float] = {}


def parse(page: str) -> ScrapedMetrics:
    """The metrics of a page in Prometheus' text format. Lines of another form are passed over."""
    found = ScrapedMetrics()
    for name, labels, value in read_samples(page, _WANTED):
        try:
            _take(found, name, labels, value)
        except (KeyError, ValueError):
            continue
    return found


def _take(found: ScrapedMetrics, name: str, labels: dict[str, str], value: float) -> None:
    if name in _GPUS:
        found.gpus.setdefault(labels["gpu_uuid"], {})[_GPUS[name]] = value
    elif name in _HOST:
        found.host[_HOST[name]] = value
    elif name == _PENDING:
        found.pending[_key(labels)] = value
    elif name == _BUCKET:
        found.buckets.setdefault(_key(labels), {})[float(labels["le"])] = value
    elif name == _SUMMARY:
        found.quantiles.setdefault(_key(labels), {})[float(labels["quantile"])] = value


def _key(labels: dict[str, str]) -> ModelKey:
    return labels["model"], labels["version"]
