"""The latency histograms of a model, with their buckets, which `model_metrics` can replace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tpy.config.model_config import ModelConfig

FIRST_RESPONSE: Final = "nv_inference_first_response_histogram_ms"
REQUEST_DURATION: Final = "tpy_inference_request_duration_seconds"
QUEUE_DURATION: Final = "tpy_inference_queue_duration_seconds"
COMPUTE_DURATION: Final = "tpy_inference_compute_duration_seconds"

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a small model on a CPU to an answer of a thousand tokens; the error of a quantile is that of a bucket."""

DEFAULT_BUCKETS: Mapping[str, tuple[float, ...]] = {
    FIRST_RESPONSE: (100.0, 500.0, 2000.0, 5000.0),
    REQUEST_DURATION: _SECONDS,
    QUEUE_DURATION: _SECONDS,
    COMPUTE_DURATION: _SECONDS,
}
"""Upper bounds by metric family, in its unit; those of the first response are Triton's."""


def histogram_buckets(config: ModelConfig) -> dict[str, tuple[float, ...]]:
    """The upper bounds of the model's histograms, by metric family."""
    found = dict(DEFAULT_BUCKETS)
    for control in () if config.model_metrics is None else config.model_metrics.metric_control:
        identifier, options = control.metric_identifier, control.histogram_options
        if identifier is not None and options is not None and identifier.family in found:
            found[identifier.family] = options.buckets
    return found
