"""A worker's MetricPort: changes are told over the side line and not waited for, everything else is asked."""

from __future__ import annotations

import contextlib
import math

from .failures import TritonModelException
from .side_line import SideLine


class MetricLine:
    """See `metrics.MetricPort`. A change takes one system call."""

    def __init__(self, line: SideLine, instance: str) -> None:
        self._line = line
        self._instance = instance

    def family(self, name: str, description: str, kind: int) -> int:
        return int(self._line.ask({"type": "family", "name": name, "description": description, "kind": kind}))

    def metric(self, family: int, labels: dict[str, str], buckets: list[float]) -> int:
        return int(self._line.ask({"type": "metric", "family": family, "labels": labels, "buckets": buckets}))

    def change(self, metric: int, operation: str, value: float) -> None:
        told = value if math.isfinite(value) else repr(value)
        self._line.tell({"type": "change", "metric": metric, "operation": operation, "value": told})

    def value(self, metric: int) -> float:
        return float(self._line.ask({"type": "value", "metric": metric}))

    def close_family(self, family: int) -> None:
        # Garbage collection calls this, perhaps when the server is gone.
        with contextlib.suppress(TritonModelException):
            self._line.tell({"type": "close_family", "family": family})

    def refusal(self, text: str) -> str:
        return f"Failed to process the request for model '{self._instance}', message: {text}"
