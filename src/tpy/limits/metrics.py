"""Bounds of metrics, those of models among them."""

from __future__ import annotations

from typing import Final

GPU_METRIC_FAILURES_MAX: Final = 3
"""Samples in a row in which a GPU does not tell a value, after which it is not asked for it any more: Triton's number."""

CUSTOM_METRIC_FAMILIES_MAX: Final = 1_000
"""Metric families that models make. A dashboard has tens; a model that makes one per request is stopped here."""

CUSTOM_METRICS_MAX: Final = 20_000
"""Series of models' metric families, all together: a scrape shows every one. Labels from user input are how it grows."""

CUSTOM_METRICS_OF_FAMILY_MAX: Final = 5_000
"""Series of one family: what one model that takes labels from requests can use up of them. Prometheus advises against more than a
few thousand; each takes a kilobyte here, and more in whoever scrapes."""

CUSTOM_METRIC_LABELS_MAX: Final = 32
"""Labels of one such series."""

CUSTOM_METRIC_BUCKETS_MAX: Final = 256
"""Buckets of one histogram of a model; each is a line of every scrape."""

HISTOGRAM_BUCKETS_MAX: Final = 256
"""Buckets of one histogram of latencies, by `model_metrics`; each is a line of every scrape, for each version."""

SUMMARY_QUANTILES_MAX: Final = 32
"""Quantiles in --metrics-config summary_quantiles: each is seven lines of every scrape, for each version."""

SUMMARY_WINDOW_S: Final = 60
"""Quantiles of summaries are those of the newest minute, as in Triton."""

SUMMARY_SLICES: Final = 5
"""The window moves on by a fifth of it at a time, as in Triton."""

CUSTOM_METRIC_TEXT_MAX: Final = 1024
"""Characters of a name, description, label or label value."""
