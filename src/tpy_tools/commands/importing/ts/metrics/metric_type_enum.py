"""Kinds of metrics."""

from __future__ import annotations

import enum


class MetricTypes(enum.Enum):
    """The kinds."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
