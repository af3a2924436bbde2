"""MetricClient: a worker's MetricPort: changes of metrics, and questions about them, over the connection."""

from __future__ import annotations

import math

from ..model.messages import sendable
from ..wire.core.frames import FrameKind
from .connection import ServerConnection


class MetricClient:
    """A worker's `MetricPort`: changes are sent and not waited for, everything else is asked."""

    def __init__(self, connection: ServerConnection, instance: str) -> None:
        self._connection = connection
        self._instance = instance

    def family(self, name: str, description: str, kind: int) -> int:
        text = sendable(description)
        return int(self._connection.ask({"type": "family", "name": sendable(name), "description": text, "kind": kind}))

    def metric(self, family: int, labels: dict[str, str], buckets: list[float]) -> int:
        sent = {sendable(key): sendable(value) for key, value in labels.items()}
        return int(self._connection.ask({"type": "metric", "family": family, "labels": sent, "buckets": buckets}))

    def change(self, metric: int, operation: str, value: float) -> None:
        sent = value if math.isfinite(value) else repr(value)
        self._connection.notify({"type": "change", "metric": metric, "operation": operation, "value": sent})

    def observe(self, metric: int, values: list[float]) -> None:
        self._connection.notify({"type": "observed", "metric": metric, "values": values})

    def value(self, metric: int) -> float:
        return float(self._connection.ask({"type": "value", "metric": metric}))

    def close_family(self, family: int) -> None:
        # Garbage collection calls this, perhaps when the server is gone.
        self._connection.post(FrameKind.NOTIFICATION, 0, {"type": "close_family", "family": family})

    def refusal(self, text: str) -> str:
        return f"Failed to process the request for model '{self._instance}', message: {text}"
