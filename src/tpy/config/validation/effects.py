"""Fields that ask for what this server does not do: refused where answers would differ, a warning where only speed would."""

from __future__ import annotations

from collections.abc import Iterator

from tpy.config.known_backends import TENSORRT_PLAN
from tpy.config.model_config import ModelConfig, ModelPriority, Optimization
from tpy.config.problem import entry
from tpy.config.validation.report import Report

_BATCH_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"


def check_effects(report: Report) -> None:
    """Refuse a batching strategy for sequences; warn about settings without effect."""
    if _BATCH_STRATEGY in report.config.parameters and report.config.sequence_batching is not None:
        text = f"{_BATCH_STRATEGY} cannot be specified with sequence batcher, using default batching strategy"
        report.error(entry("parameters", _BATCH_STRATEGY), text, expected="the parameter to be left out")
    for path in _without_effect(report.config):
        report.warning(path, f"'{path.rpartition('.')[2].partition('[')[0]}' has no effect in this server")


def _without_effect(config: ModelConfig) -> Iterator[str]:
    if config.optimization is not None:
        yield from _optimization_without_effect(config.optimization, tensorrt=config.platform == TENSORRT_PLAN)


def _optimization_without_effect(optimization: Optimization, *, tensorrt: bool) -> Iterator[str]:
    if optimization.priority is not ModelPriority.PRIORITY_DEFAULT and not tensorrt:
        yield "optimization.priority"
    cuda = optimization.cuda
    if cuda is not None and not tensorrt:
        yield "optimization.cuda"
    elif cuda is not None:
        if cuda.busy_wait_events:
            yield "optimization.cuda.busy_wait_events"
        if cuda.output_copy_stream:
            yield "optimization.cuda.output_copy_stream"
    if optimization.gather_kernel_buffer_threshold:
        yield "optimization.gather_kernel_buffer_threshold"
    if optimization.eager_batching:
        yield "optimization.eager_batching"
