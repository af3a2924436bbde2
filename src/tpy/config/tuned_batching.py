"""Batching that tunes itself, as the parameters `batching`, `target_p99_ms`, `max_padding` and `padding_input` of a model ask for
it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tpy.config.model_config import ModelConfig, ModelInput
from tpy.units import NS_PER_MS

PARAMETER: Final = "batching"
AUTO: Final = "auto"
TARGET_PARAMETER: Final = "target_p99_ms"
PADDING_PARAMETER: Final = "max_padding"
PADDING_INPUT_PARAMETER: Final = "padding_input"
_TARGET_MS_MAX: Final = 1e9
PARAMETERS: Final = (PARAMETER, TARGET_PARAMETER, PADDING_PARAMETER, PADDING_INPUT_PARAMETER)


class TunedBatching(NamedTuple):
    """`target_ns`: the latency that 99 % of the requests should not exceed; 0: as low as can be."""

    target_ns: int = 0


class LengthBatching(NamedTuple):
    """`padding_ppm_max`: the share of a batch that may be padding, in millionths, where each row is as long as the longest. The
    length of a row is the size of `axis` of the tensor `input`, in the model's shape with the batch dimension."""

    padding_ppm_max: int
    input: str
    axis: int


def tuned_batching(config: ModelConfig) -> TunedBatching | None:
    """The tuning of sizes and waits that a model asks for; None: none, or it cannot have it, or batches are formed by length."""
    if config.parameter(PARAMETER) != AUTO or _hindrance(config) or length_batching(config) is not None:
        return None
    return TunedBatching(_target_ns(config) or 0)


def length_batching(config: ModelConfig) -> LengthBatching | None:
    """The batches by length that a model asks for; None: none, or it cannot have them."""
    padding_ppm_max = _padding_ppm_max(config)
    if config.parameter(PARAMETER) != AUTO or _hindrance(config) or padding_ppm_max is None:
        return None
    found = _padding_input(config)
    if isinstance(found, str):
        return None
    return LengthBatching(padding_ppm_max, found.name, 1 + _model_dims(found).index(-1))


def problems(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """The parameters that have no effect, each with the reason: they may be the model's own."""
    value, target = config.parameter(PARAMETER), config.parameter(TARGET_PARAMETER)
    if value and value != AUTO:
        yield PARAMETER, f"has the unexpected value '{value}', expected {AUTO}: batches are formed as without it"
    if value != AUTO:
        for name in PARAMETERS[1:]:
            if config.parameter(name):
                yield name, f"has no effect without the parameter {PARAMETER}: {AUTO}"
        return
    if hindrance := _hindrance(config):
        yield PARAMETER, f"has no effect: {hindrance}"
    if _target_ns(config) is None:
        yield (
            TARGET_PARAMETER,
            f"has the unexpected value '{target}', expected milliseconds above 0, at most 1e9: no target is set",
        )
    yield from _padding_problems(config)
    dynamic = config.dynamic_batching
    if dynamic is not None:
        sizes, delay_us = dynamic.preferred_batch_size, dynamic.max_queue_delay_microseconds
        unused = ["preferred_batch_size"] if sizes and set(sizes) != {config.max_batch_size} else []
        unused += ["max_queue_delay_microseconds"] if delay_us else []
        if unused:
            yield PARAMETER, f"chooses sizes and waits itself: {' and '.join(unused)} of dynamic_batching are not used"


def _padding_problems(config: ModelConfig) -> Iterator[tuple[str, str]]:
    text = config.parameter(PADDING_PARAMETER)
    if not text:
        if config.parameter(PADDING_INPUT_PARAMETER):
            yield PADDING_INPUT_PARAMETER, f"has no effect without the parameter {PADDING_PARAMETER}"
        return
    found = _padding_input(config)
    if _padding_ppm_max(config) is None:
        yield (
            PADDING_PARAMETER,
            f"has the unexpected value '{text}', expected a share from 0 to 1: batches are not formed by length",
        )
    elif isinstance(found, str):
        name = PADDING_INPUT_PARAMETER if config.parameter(PADDING_INPUT_PARAMETER) else PADDING_PARAMETER
        yield name, f"{found}: batches are not formed by length"
    elif config.parameter(TARGET_PARAMETER) and not _hindrance(config):
        yield TARGET_PARAMETER, f"has no effect beside {PADDING_PARAMETER}: batches are formed by length, and wait for nothing"


def _padding_input(config: ModelConfig) -> ModelInput | str:
    """The input whose length counts, or why there is not one."""
    name = config.parameter(PADDING_INPUT_PARAMETER)
    able = [entry for entry in config.input if entry.allow_ragged_batch and not entry.optional and -1 in _model_dims(entry)]
    needs = "with allow_ragged_batch, a variable dimension and without optional"
    if not name:
        return able[0] if able else f"needs an input {needs}"
    if name not in {entry.name for entry in config.input}:
        names = ", ".join(sorted(entry.name for entry in config.input))
        return f"has the unexpected value '{name}', expected the name of an input ({names})"
    return next((entry for entry in able if entry.name == name), f"names '{name}', and needs an input {needs}")


def _model_dims(entry: ModelInput) -> tuple[int, ...]:
    """The input's dims as the model sees them."""
    return entry.dims if entry.reshape is None else entry.reshape.shape


def _padding_ppm_max(config: ModelConfig) -> int | None:
    """None: not set, or set to an invalid value."""
    try:
        share = float(config.parameter(PADDING_PARAMETER) or "nan")
    except ValueError:
        return None
    return round(share * 1_000_000) if 0 <= share <= 1 else None


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
    return max(1, round(target_ms * NS_PER_MS)) if 0 < target_ms <= _TARGET_MS_MAX else None
