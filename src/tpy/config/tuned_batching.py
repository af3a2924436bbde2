"""Batching that tunes itself, as the parameters `batching` and `target_p99_ms` of a model ask for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from tpy.config.model_config import ModelConfig
from tpy.units import NS_PER_MS

PARAMETER: Final = "batching"
AUTO: Final = "auto"
TARGET_PARAMETER: Final = "target_p99_ms"


class TunedBatching(NamedTuple):
    """`target_ns`: the latency that 99 % of the requests should not exceed; 0: as low as can be."""

    target_ns: int = 0


def tuned_batching(config: ModelConfig) -> TunedBatching | None:
    """The tuning that a model asks for; None: none, or it cannot have it."""
    if config.parameter(PARAMETER) != AUTO or _hindrance(config):
        return None
    return TunedBatching(_target_ns(config) or 0)


def problems(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """The parameters that have no effect, each with the reason: they may be the model's own."""
    value, target = config.parameter(PARAMETER), config.parameter(TARGET_PARAMETER)
    if value and value != AUTO:
        yield PARAMETER, f"has the unexpected value '{value}', expected {AUTO}: batches are formed as without it"
    if target and value != AUTO:
        yield TARGET_PARAMETER, f"has no effect without the parameter {PARAMETER}: {AUTO}"
    if value != AUTO:
        return
    if hindrance := _hindrance(config):
        yield PARAMETER, f"has no effect: {hindrance}"
    if _target_ns(config) is None:
        yield (
            TARGET_PARAMETER,
            f"has the unexpected value '{target}', expected a number of milliseconds above 0: no target is set",
        )
    dynamic = config.dynamic_batching
    if dynamic is not None:
        sizes, delay_us = dynamic.preferred_batch_size, dynamic.max_queue_delay_microseconds
        unused = ["preferred_batch_size"] if sizes and set(sizes) != {config.max_batch_size} else []
        unused += ["max_queue_delay_microseconds"] if delay_us else []
        if unused:
            yield PARAMETER, f"chooses sizes and waits itself: {' and '.join(unused)} of dynamic_batching are not used"


def _hindrance(config: ModelConfig) -> str:
    """The reason why batches cannot be tuned; "" where they can."""
    if config.sequence_batching is not None:
        return "batches of sequences are not tuned"
    if config.dynamic_batching is None:
        return "it needs dynamic_batching { }"
    if config.max_batch_size <= 1:
        return f"max_batch_size is {config.max_batch_size}, so no batch has more than one row"
    return ""


def _target_ns(config: ModelConfig) -> int | None:
    """0: not set; None: set to an invalid value."""
    text = config.parameter(TARGET_PARAMETER)
    if not text:
        return 0
    try:
        target_ms = float(text)
    except ValueError:
        return None
    return max(1, round(target_ms * NS_PER_MS)) if 0 < target_ms < math.inf else None
