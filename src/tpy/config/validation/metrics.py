"""Rules of metric_tags and model_metrics."""

from __future__ import annotations

import re
from typing import Final

from tpy.config.problem import entry
from tpy.config.validation.report import Report

_IN_LABEL_NAME: Final = re.compile("[a-zA-Z0-9_]*")
"""The characters of a label's name, which follow the `_` that each tag gets."""


def check_metrics(report: Report) -> None:
    """Tags can be names of labels: Prometheus would refuse the whole page for one that cannot. A control names its family and the
    buckets that it sets."""
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
        if control.histogram_options is None:
            report.error(path, "metric control must specify 'histogram_options'")
        elif not control.histogram_options.buckets:
            report.error(f"{path}.histogram_options.buckets", "histogram options must specify non-empty 'buckets'")
