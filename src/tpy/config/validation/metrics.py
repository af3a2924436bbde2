"""Rules of metric_tags and model_metrics."""

from __future__ import annotations

import itertools
import math
import re
from typing import Final

from tpy.config.histograms import DEFAULT_BUCKETS
from tpy.config.problem import entry
from tpy.config.validation.report import Report
from tpy.limits import HISTOGRAM_BUCKETS_MAX

_IN_LABEL_NAME: Final = re.compile("[a-zA-Z0-9_]*")
"""The characters of a label's name, which follow the `_` that each tag gets."""


def check_metrics(report: Report) -> None:
    """Tags can be names of labels: Prometheus would refuse the whole page for one that cannot. A control names the histogram
    whose buckets it sets."""
    for key in report.config.metric_tags:
        if _IN_LABEL_NAME.fullmatch(key) is None:
            text = f"metric tag '{key}' of {report.config.name} cannot be part of the name of a label"
            report.error(entry("metric_tags", key), text, expected="letters, digits and underscores")
    metrics = report.config.model_metrics
    if metrics is None:
        return
    for index, control in enumerate(metrics.metric_control):
        path = f"model_metrics.metric_control[{index}]"
        if control.metric_identifier is None:
            report.error(path, "metric control must specify 'metric_identifier'")
        elif not control.metric_identifier.family:
            report.error(f"{path}.metric_identifier.family", "metric identifier must specify non-empty 'family'")
        elif (family := control.metric_identifier.family) not in DEFAULT_BUCKETS:
            text = f"Metric family '{family}' in 'metric_identifier' is not a customizable metric in Triton core."
            report.warning(f"{path}.metric_identifier.family", text)
        if control.histogram_options is None:
            report.error(path, "metric control must specify 'histogram_options'")
        else:
            _check_buckets(report, f"{path}.histogram_options.buckets", control.histogram_options.buckets)


def _check_buckets(report: Report, path: str, buckets: tuple[float, ...]) -> None:
    if not buckets:
        report.error(path, "histogram options must specify non-empty 'buckets'")
    elif len(buckets) > HISTOGRAM_BUCKETS_MAX:
        report.error(path, f"a histogram has {len(buckets)} buckets", expected=f"at most {HISTOGRAM_BUCKETS_MAX}")
    elif not all(map(math.isfinite, buckets)) or any(low >= high for low, high in itertools.pairwise(buckets)):
        report.error(path, "the buckets of a histogram are not in order", expected="finite numbers, each above the last")
