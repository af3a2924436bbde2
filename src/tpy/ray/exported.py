"""The metrics of a replica among Ray's: in the Prometheus output of its node, with the labels that Serve adds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from ray.serve import metrics as serve_metrics

from tpy.limits.ray import RAY_METRICS_PERIOD_S

_COUNTED = ("counter", "histogram", "summary")
_OWN_LABELS = ("deployment", "replica", "application", "route")
"""The labels that Serve adds."""


class ExportedMetrics:
    """Reads the page of the server's metrics and tells Ray. Counters tell what has come since the last page."""

    def __init__(self) -> None:
        self._metrics: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._told: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    async def export_forever(self, page: Callable[[], Awaitable[str]]) -> None:
        """Export the page again and again, until cancelled."""
        while True:
            self.export(await page())
            await asyncio.sleep(RAY_METRICS_PERIOD_S)

    def export(self, page: str) -> None:
        """Tell Ray the values on a page."""
        for family in text_string_to_metric_families(page):
            is_counter = family.type in _COUNTED
            for sample in family.samples:
                is_quantile = family.type == "summary" and "quantile" in sample.labels
                self._export(sample.name, family.documentation, dict(sample.labels), sample.value, is_counter and not is_quantile)

    def _export(self, name: str, text: str, labels: dict[str, str], value: float, is_counter: bool) -> None:
        tags = {f"tpy_{key}" if key in _OWN_LABELS else key: each for key, each in labels.items()}
        keys = tuple(sorted(tags))
        metric = self._metrics.get((name, keys))
        if metric is None:
            kind = serve_metrics.Counter if is_counter else serve_metrics.Gauge
            metric = self._metrics[name, keys] = kind(name, description=text, tag_keys=keys)
        if not is_counter:
            metric.set(value, tags=tags)
            return
        series = name, tuple(sorted(tags.items()))
        before = self._told.get(series, 0.0)
        self._told[series] = value
        new = value if value < before else value - before  # a model that was loaded again counts from 0
        if new > 0:
            metric.inc(new, tags=tags)
