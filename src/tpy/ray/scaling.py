"""Autoscaling by `tpy_load`."""

from __future__ import annotations

import math
from typing import Any

LOAD_TARGET_DEFAULT = 0.7
"""A replica that is full serves a burst only from its queue."""


class ByLoad:
    """A policy of Serve: as many replicas as bring the load of each to `target`. A load of 1 is a replica whose instances are all
    at work; above that it is what would be needed."""

    def __init__(self, target: float = LOAD_TARGET_DEFAULT) -> None:
        self._target = target

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas that is wanted. Serve keeps it within the bounds of the deployment, and applies its delays."""
        loads = (context.aggregated_metrics or {}).get("tpy_load", {})
        if not loads:  # nobody has told yet; none run: one, for requests that wait
            waiting = context.current_num_replicas == 0 and context.total_num_requests > 0
            return (1 if waiting else context.target_num_replicas), {}
        mean = sum(loads.values()) / len(loads)
        return math.ceil(context.current_num_replicas * mean / self._target), {}
