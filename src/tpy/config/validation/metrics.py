"""Rules of model_metrics."""

from __future__ import annotations

from tpy.config.validation.report import Report


def check_metrics(report: Report) -> None:
    """A control names its family and the buckets that it sets."""
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
