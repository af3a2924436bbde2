"""Rules of dynamic_batching."""

from __future__ import annotations

from tpy.config.model_config import DynamicBatching, QueuePolicy, TimeoutAction
from tpy.config.validation.report import Report


def check_dynamic_batching(report: Report) -> None:
    """Preferred sizes, priority levels, and what preserve_ordering excludes."""
    batching = report.config.dynamic_batching
    if batching is None:
        return
    check_preferred_sizes(
        report,
        batching.preferred_batch_size,
        path="dynamic_batching.preferred_batch_size",
        title="dynamic batching preferred size",
    )
    if batching.priority_levels:
        _check_priorities(report, batching)
    if batching.preserve_ordering:
        _check_ordering(report, batching)


def check_preferred_sizes(report: Report, sizes: tuple[int, ...], *, path: str, title: str) -> None:
    """Preferred batch sizes are positive and fit into max_batch_size."""
    name = report.config.name
    for index, size in enumerate(sizes):
        if size <= 0:
            report.error(f"{path}[{index}]", f"{title} must be positive for {name}", expected=f"an integer > 0, not {size}")
        elif size > report.config.max_batch_size:
            expected = f"at most {report.config.max_batch_size}, not {size}"
            report.error(f"{path}[{index}]", f"{title} must be <= max batch size for {name}", expected=expected)


def _check_priorities(report: Report, batching: DynamicBatching) -> None:
    levels = batching.priority_levels
    name = report.config.name
    if not 1 <= batching.default_priority_level <= levels:
        text = f"default priority level must be in range [1, {levels}] for {name}"
        report.error("dynamic_batching.default_priority_level", text)
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            text = f"priority queue policy must have priority level in range [1, {levels}] for {name}"
            report.error(f"dynamic_batching.priority_queue_policy[{level}]", text)


def _check_ordering(report: Report, batching: DynamicBatching) -> None:
    name = report.config.name
    if batching.priority_levels > 1:
        text = f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        report.error("dynamic_batching.priority_levels", text)
    policies: list[tuple[str, QueuePolicy]] = [
        (f"dynamic_batching.priority_queue_policy[{level}]", policy) for level, policy in batching.priority_queue_policy.items()
    ]
    if batching.default_queue_policy is not None:
        policies.insert(0, ("dynamic_batching.default_queue_policy", batching.default_queue_policy))
    for path, policy in policies:
        if policy.default_timeout_microseconds and policy.timeout_action is TimeoutAction.DELAY:
            text = f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"
            report.error(f"{path}.timeout_action", text)
